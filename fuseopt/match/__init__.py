"""Recognising what regions compute: shadow terms, the matcher, rules and their registry."""

"""Checking replacements against the operations they replace."""

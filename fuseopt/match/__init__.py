"""Shadow terms, the matcher and the registry of rules."""

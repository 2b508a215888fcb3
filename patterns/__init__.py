"""The built-in rules, one file each. Installed as `fuseopt.patterns`."""

if __name__ != "fuseopt.patterns":
    raise ImportError(f"import the built-in rules as fuseopt.patterns, not as {__name__}")

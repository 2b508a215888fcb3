"""The `fuseopt` command."""

from fuseopt.cli.app import main

__all__ = ["main"]

"""The errors fuseopt raises: each says what was given, what is allowed and what to do."""

from __future__ import annotations


class FuseOptError(Exception):
    """Base of every error that fuseopt raises on purpose."""


class UsageError(FuseOptError, ValueError):
    """An argument, option or environment variable is not one that fuseopt accepts."""


class CaptureError(FuseOptError):
    """The model could not be traced to a graph."""


class RuleError(FuseOptError):
    """A rule is not written the way `fuseopt.rule.Rule` asks for, or clashes with another."""


class UnsupportedError(FuseOptError):
    """The input lies outside what fuseopt handles (device, dtype, layout)."""


class KernelError(FuseOptError):
    """A generated kernel did not compile or does not fit the device."""


class VerificationError(FuseOptError):
    """A replacement does not agree with the operations it replaces."""


class CacheError(FuseOptError):
    """The cache directory cannot be used, or an entry in it is damaged."""

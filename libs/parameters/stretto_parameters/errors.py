"""The errors of the parameter store. Every message names the field, its value and the remedy."""

from __future__ import annotations


class InputRefused(ValueError):
    """An argument that does not fit the layout or the state of the store. Nothing was changed."""


class StoreFull(MemoryError):
    """No room for further rows. A push changed nothing; an import left the bucket empty or in part."""


class LogFull(OSError):
    """No room for further cold rows on the disk. The rows stay hot."""


class LogDamaged(RuntimeError):
    """A cold row that cannot be read, or is not what was written: the server has lost it."""

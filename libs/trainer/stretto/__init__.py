"""Elastic parameter-server training of Keras and PyTorch models: the package that a training script imports.

A user writes an object with ``build()``, ``read(start, length)`` and, where the default does not fit, ``keys(batch)``;
see the README. Importing this package imports nothing but its errors; what is used of it brings what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import DataError, ModelRefused, StrettoError

if TYPE_CHECKING:
    from stretto_client import connect

    from .adapt import adapt
    from .evaluate import Quality, evaluate
    from .keys import field_keys, hash_strings, hash_values
    from .local import train_locally
    from .model import Program

__all__ = [
    "DataError",
    "ModelRefused",
    "Program",
    "Quality",
    "StrettoError",
    "adapt",
    "connect",
    "evaluate",
    "field_keys",
    "hash_strings",
    "hash_values",
    "train_locally",
]

_LAZY = {
    "adapt": ".adapt",
    "connect": "stretto_client",
    "Program": ".model",
    "Quality": ".evaluate",
    "evaluate": ".evaluate",
    "field_keys": ".keys",
    "hash_strings": ".keys",
    "hash_values": ".keys",
    "train_locally": ".local",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'stretto' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name], __name__), name)

"""Elastic parameter-server training of Keras and PyTorch models: the package that a training script imports.

A user writes an object with ``build()``, ``read(start, length)`` and, where the default does not fit, ``keys(batch)``;
see the README. Importing this package imports nothing but its errors; what is used of it brings what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import DataError, ModelRefused, StrettoError

if TYPE_CHECKING:
    from stretto_client import connect

    from .keras.adapt import adapt
    from .model.evaluate import Quality, evaluate
    from .model.keys import field_keys
    from .model.program import Program
    from .readers.hashing import hash_strings, hash_values
    from .trial.local import train_locally

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
    "adapt": ".keras.adapt",
    "connect": "stretto_client",
    "Program": ".model.program",
    "Quality": ".model.evaluate",
    "evaluate": ".model.evaluate",
    "field_keys": ".model.keys",
    "hash_strings": ".readers.hashing",
    "hash_values": ".readers.hashing",
    "train_locally": ".trial.local",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'stretto' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name], __name__), name)

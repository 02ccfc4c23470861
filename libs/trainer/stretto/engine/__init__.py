"""The parameter-server engine: servers, clients, live migration and checkpoint images.

Importing this package imports nothing of it: a data worker has use for a job's key, and not for a server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto_parameters import Own
    from stretto_plane import Key

    from .client import FINISHED, Parameters, PushResult
    from .codec import ServerStats, WorkerSeen
    from .control import Control
    from .images import Base, Exported, PsImage, export_image, image_bytes, load_image, loaded_bytes
    from .layout import KeyBatch, Layout, Table, one_table
    from .link import Access
    from .locked_store import LockedStore
    from .migration import MoveStep, move
    from .pulling import Pulled
    from .routing import owners
    from .server import ParameterServer
    from .spilling import Spill

__all__ = [
    "FINISHED",
    "Access",
    "Base",
    "Control",
    "Exported",
    "Key",
    "KeyBatch",
    "Layout",
    "LockedStore",
    "MoveStep",
    "Own",
    "ParameterServer",
    "Parameters",
    "PsImage",
    "Pulled",
    "PushResult",
    "ServerStats",
    "Spill",
    "Table",
    "WorkerSeen",
    "export_image",
    "image_bytes",
    "load_image",
    "loaded_bytes",
    "move",
    "one_table",
    "owners",
]

_HOMES = {
    "stretto_parameters": ("Own",),
    "stretto_plane": ("Key",),
    ".client": (
        "FINISHED",
        "Parameters",
        "PushResult",
    ),
    ".codec": (
        "ServerStats",
        "WorkerSeen",
    ),
    ".control": ("Control",),
    ".images": (
        "Base",
        "Exported",
        "PsImage",
        "export_image",
        "image_bytes",
        "load_image",
        "loaded_bytes",
    ),
    ".layout": (
        "KeyBatch",
        "Layout",
        "Table",
        "one_table",
    ),
    ".link": ("Access",),
    ".locked_store": ("LockedStore",),
    ".spilling": ("Spill",),
    ".migration": (
        "MoveStep",
        "move",
    ),
    ".pulling": ("Pulled",),
    ".routing": ("owners",),
    ".server": ("ParameterServer",),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)

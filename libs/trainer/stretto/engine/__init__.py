"""The parameter-server engine: servers, clients, live migration and checkpoint images."""

from stretto_parameters import Own
from stretto_plane import Key

from .client import FINISHED, Parameters, Pulled, PushResult
from .codec import ServerStats, WorkerSeen
from .control import Control
from .images import Base, Exported, PsImage, export_image, image_bytes, load_image, loaded_bytes
from .layout import KeyBatch, Layout, Table, one_table
from .link import Access
from .locked_store import LockedStore
from .migration import MoveStep, move
from .routing import owners
from .server import ParameterServer

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

"""The parameter-server engine: layout, servers, clients, live migration and checkpoint images."""

from .checkpoint import Exported, PsImage, export_image, image_bytes, load_image
from .client import FINISHED, Parameters, Pulled, PushResult
from .control import Applied, Control, Stats, WorkerSeen
from .layout import KeyBatch, Layout, Optimizer
from .migration import MoveStep, move
from .ownership import Own, owners
from .server import ParameterServer

__all__ = [
    "FINISHED",
    "Applied",
    "Control",
    "Exported",
    "KeyBatch",
    "Layout",
    "MoveStep",
    "Optimizer",
    "Own",
    "ParameterServer",
    "Parameters",
    "PsImage",
    "Pulled",
    "PushResult",
    "Stats",
    "WorkerSeen",
    "export_image",
    "image_bytes",
    "load_image",
    "move",
    "owners",
]

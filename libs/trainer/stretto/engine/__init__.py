"""The parameter-server engine: layout, servers, clients, live migration and checkpoint images."""

from .checkpoint import PsImage, export_image, load_image
from .client import FINISHED, Parameters, Pulled, PushResult
from .control import Applied, Control, Stats, WorkerSeen
from .layout import KeyBatch, Layout, Optimizer
from .migration import MoveStep, move, repair
from .placement import Own, assign, owners, plan_moves
from .server import ParameterServer

__all__ = [
    "FINISHED",
    "Applied",
    "Control",
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
    "assign",
    "export_image",
    "load_image",
    "move",
    "owners",
    "plan_moves",
    "repair",
]

"""The parameters of a training job, outside TensorFlow: rows, optimizers and exactly-once records."""

from .errors import InputRefused, LogDamaged, LogFull, StoreFull
from .layout import EVERY_KEY, Layout, RowPolicy, Table
from .optimizers.clipping import Clipping
from .policy import RowAccount
from .records import Claim, Code, Own, Progress
from .store import Applied, Pulled, Push, PushAnswer, RawBucket, RawSlices, Stats, Store, WorkerSeen
from .tiers import RowsAsleep, Tiers

__all__ = [
    "EVERY_KEY",
    "Applied",
    "Claim",
    "Clipping",
    "Code",
    "InputRefused",
    "Layout",
    "LogDamaged",
    "LogFull",
    "Own",
    "Progress",
    "Pulled",
    "Push",
    "PushAnswer",
    "RawBucket",
    "RawSlices",
    "RowAccount",
    "RowPolicy",
    "RowsAsleep",
    "Stats",
    "Store",
    "StoreFull",
    "Table",
    "Tiers",
    "WorkerSeen",
]

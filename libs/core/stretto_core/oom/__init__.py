"""Growth of parameter servers' memory, and their need of it (DLRover-RM section 5.3)."""

from stretto_core.oom.growth import Estimate, Growth, GrowthLaw, GrowthPoint, add_point, fit_growth
from stretto_core.oom.line import fit_line
from stretto_core.oom.machine import OomMachine, WatchEvent
from stretto_core.oom.state import JobOpened, WatchError, WatchSettings, WatchState
from stretto_core.oom.usage import RowCost, ServerUsage, UsagePoint, bytes_at, row_cost

__all__ = [
    "Estimate",
    "Growth",
    "GrowthLaw",
    "GrowthPoint",
    "JobOpened",
    "OomMachine",
    "RowCost",
    "ServerUsage",
    "UsagePoint",
    "WatchError",
    "WatchEvent",
    "WatchSettings",
    "WatchState",
    "add_point",
    "bytes_at",
    "fit_growth",
    "fit_line",
    "row_cost",
]

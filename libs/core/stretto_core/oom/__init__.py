"""Where the memory of parameter servers is going, and what they need (DLRover-RM section 5.3)."""

from stretto_core.oom.forecast import MemoryForecast, ServerForecast, forecast
from stretto_core.oom.growth import Growth, GrowthLaw, GrowthPoint, Interval, add_point, fit_growth
from stretto_core.oom.line import fit_line
from stretto_core.oom.machine import (
    LimitChanged,
    LimitDecided,
    MemoryMeasured,
    OomForecast,
    OomMachine,
    ProgressSeen,
    ServerLeft,
    ServerMeasured,
    WatchClosed,
    WatchError,
    WatchOpened,
    WatchSettings,
    WatchState,
)
from stretto_core.oom.usage import RowCost, ServerUsage, bytes_at, fit_row_cost, share_of_growth

__all__ = [
    "Growth",
    "GrowthLaw",
    "GrowthPoint",
    "Interval",
    "LimitChanged",
    "LimitDecided",
    "MemoryForecast",
    "MemoryMeasured",
    "OomForecast",
    "OomMachine",
    "ProgressSeen",
    "RowCost",
    "ServerForecast",
    "ServerLeft",
    "ServerMeasured",
    "ServerUsage",
    "WatchClosed",
    "WatchError",
    "WatchOpened",
    "WatchSettings",
    "WatchState",
    "add_point",
    "bytes_at",
    "fit_growth",
    "fit_line",
    "fit_row_cost",
    "forecast",
    "share_of_growth",
]

"""Settings of the profiler: STRETTO_PROFILER_<FIELD> or STRETTO_<FIELD>."""

from __future__ import annotations

from pydantic import Field
from stretto_core.algorithms import DETECT
from stretto_core.profiler.state import ProfilingRules
from stretto_runtime import Settings

DEFAULTS = ProfilingRules()


class ProfilerSettings(Settings):
    """Windows and thresholds. They stay the same for the life of an installation, because replay uses them again."""

    algorithm: str = Field(
        DETECT.default, description="detection of outliers; `stretto whatif algorithms` lists them for `detect`"
    )
    window_s: float = Field(DEFAULTS.window_s, ge=0.5, le=600, description="length of a profile")
    clock_skew_s: float = Field(DEFAULTS.clock_skew_s, gt=0, description="largest difference from the server's time")
    straggler_slowdown: float = Field(
        DEFAULTS.straggler_slowdown, gt=1, description="step time over the peers' median that makes a straggler"
    )
    # two cores: a report costs the services that decide 1.5 ms together, decisions included (bench deciding)
    reports_per_s: float = Field(
        500.0, gt=0, description="reports that all pods together send; each reports every 1 to 60 s"
    )
    hot_factor: float = Field(
        DEFAULTS.hot_factor, gt=1, description="update time over the peers' median that makes a hot server"
    )

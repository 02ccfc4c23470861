"""What the profiler can be told: STRETTO_PROFILER_<FIELD> or STRETTO_<FIELD>."""

from __future__ import annotations

from pydantic import Field
from stretto_core.profiler.facts import ProfilingRules
from stretto_runtime import Settings


class ProfilerSettings(Settings):
    """Windows and thresholds. Constant for the life of an installation: replay uses them again."""

    algorithm: str = Field("cusum", description="as `stretto whatif algorithms` lists them for `detect`")
    window_s: float = Field(5.0, ge=0.5, le=600, description="of a profile")
    clock_skew_s: float = Field(30.0, gt=0, description="reports further from the server's time are refused")
    straggler_slowdown: float = Field(2.0, gt=1, description="step time over the peers' median that makes a straggler")
    hot_factor: float = Field(2.0, gt=1, description="update time over the peers' median that makes a hot server")

    @property
    def rules(self) -> ProfilingRules:
        """As the core wants them."""
        return ProfilingRules(
            window_s=self.window_s,
            clock_skew_s=self.clock_skew_s,
            straggler_slowdown=self.straggler_slowdown,
            hot_factor=self.hot_factor,
        )

"""Settings of the memory watch."""

from __future__ import annotations

from pydantic import Field
from stretto_core.algorithms import OOM
from stretto_core.oom.state import WatchSettings
from stretto_runtime import Settings

DEFAULTS = WatchSettings()


class OomSettings(Settings):
    """Read from ``STRETTO_OOM_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    algorithm: str = Field(
        OOM.default, description="forecast of memory; `stretto whatif algorithms` lists them for `oom`"
    )
    lead_s: float = Field(DEFAULTS.lead_s, gt=0, le=86400, description="time that getting memory takes, with slack")
    move_lead_s: float = Field(
        DEFAULTS.move_lead_s, gt=0, le=86400, description="time that moving buckets to other servers takes"
    )
    repeat_s: float = Field(
        DEFAULTS.repeat_s, ge=1, le=3600, description="interval at which a forecast without news is repeated"
    )
    change: float = Field(DEFAULTS.change, gt=0, lt=1, description="relative change that is news")
    shrink_gain: float = Field(
        DEFAULTS.shrink_gain, gt=0, lt=1, description="part of the limit that a shrink must free"
    )
    shrink_gain_final: float = Field(
        DEFAULTS.shrink_gain_final,
        gt=0,
        lt=1,
        description="part of the limit that a shrink must free, once the end is well known",
    )
    shrink_patience_s: float = Field(
        DEFAULTS.shrink_patience_s,
        ge=0,
        le=86400,
        description="time for which a shrink must be right before it is asked for",
    )

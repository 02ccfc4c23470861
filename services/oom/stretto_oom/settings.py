"""What the memory watch can be told."""

from __future__ import annotations

from dataclasses import fields

from pydantic import Field
from stretto_core.oom import WatchSettings
from stretto_runtime import Settings


class OomSettings(Settings):
    """Read from ``STRETTO_OOM_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    algorithm: str = Field("growth", description="as `stretto whatif algorithms` lists them for `oom`")
    lead_s: float = Field(30.0, gt=0, le=86400, description="time that getting memory takes, with room")
    move_lead_s: float = Field(60.0, gt=0, le=86400, description="time that moving buckets to other servers takes")
    repeat_s: float = Field(30.0, ge=1, le=3600, description="a forecast that says nothing new comes so often")
    change: float = Field(0.05, gt=0, lt=1, description="relative change that is news")
    shrink_gain: float = Field(0.25, gt=0, lt=1, description="part of the limit that giving back must free")
    shrink_gain_final: float = Field(0.1, gt=0, lt=1, description="the same, once the end is well known")
    shrink_patience_s: float = Field(60.0, ge=0, le=86400, description="giving back must be right for so long")
    table_slots: int = Field(256, ge=0, description="initial slots of a bucket's hash table, which doubles; 0: rows")

    def watch(self) -> WatchSettings:
        return WatchSettings(**{field.name: getattr(self, field.name) for field in fields(WatchSettings)})

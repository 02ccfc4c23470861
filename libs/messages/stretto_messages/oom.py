"""Facts of the OOM predictor: forecasts of the memory of parameter servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import MaxLen

from stretto_messages.base import GIB, Bytes, Count, Message, Seconds, Text, example
from stretto_messages.scenario import JOB
from stretto_messages.values import Interval, PsForecast, Remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class OomForecast(Message):
    """Forecast of the memory of a job's parameter servers, and the limit that they need."""

    ps: Annotated[tuple[PsForecast, ...], MaxLen(400)]
    samples_done: Count
    samples_total: Count
    horizon_s: Seconds
    recommended_ps_memory_bytes: Bytes
    limit_ps_memory_bytes: Bytes
    action: Literal["none", "grow", "shrink"]
    reason: Text
    remedies: Annotated[tuple[Remedy, ...], MaxLen(3)] = ()
    """Empty: nothing is lacking, or the servers have not measured what spilling would cost."""
    base_bytes: Bytes = 0
    """Memory of the fullest server beside its rows: each further server takes as much again."""


example(
    OomForecast(
        job=JOB,
        ps=(
            PsForecast(
                pod="ps-0",
                used_bytes=1_932_735_283,
                limit_bytes=2 * GIB,
                at_end_bytes=3 * GIB,
                at_end_interval_bytes=Interval(low=2.8 * GIB, high=3.3 * GIB),
                oom_in_s=410.0,
                oom_at_samples=24_900_000,
            ),
        ),
        samples_done=10_190_848,
        samples_total=91_681_234,
        horizon_s=2270.0,
        recommended_ps_memory_bytes=4 * GIB,
        limit_ps_memory_bytes=2 * GIB,
        action="grow",
        reason="ps-0 would run out of memory in 410 s, 1,860 s before the job ends",
        base_bytes=96 * 2**20,
        remedies=(
            Remedy(kind="grow", ps=2, ps_memory_bytes=4 * GIB, cost_per_hour=0.32),
            Remedy(kind="move", ps=4, ps_memory_bytes=2 * GIB, cost_per_hour=0.4),
            Remedy(
                kind="spill",
                ps=2,
                ps_memory_bytes=2 * GIB,
                cost_per_hour=0.3,
                slowdown=0.0,
                slowdown_interval=Interval(low=0.0, high=0.19),
                reads_per_step=186.0,
                reads_interval=Interval(low=155.0, high=223.0),
                hot_share=0.56,
                disk_bytes=3 * GIB,
            ),
        ),
    )
)

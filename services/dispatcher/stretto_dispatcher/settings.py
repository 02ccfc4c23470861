"""Settings of the dispatcher: times of the ledger."""

from __future__ import annotations

from pydantic import Field
from stretto_core.dispatcher.state import LedgerSettings
from stretto_runtime import Settings

DEFAULTS = LedgerSettings()


class DispatcherSettings(Settings):
    """Read from ``STRETTO_DISPATCHER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    lease_timeout_s: float = Field(
        DEFAULTS.lease_timeout_s, gt=5, le=3600, description="a worker that is silent for longer loses its shard"
    )
    wait_s: float = Field(
        DEFAULTS.wait_s, gt=0, le=60, description="time until a worker that found no shard asks again"
    )
    progress_every_s: float = Field(
        DEFAULTS.progress_every_s, ge=0.1, le=600, description="time between two job-progressed"
    )
    progress_per_s: float = Field(
        DEFAULTS.progress_per_s,
        ge=1,
        le=1e6,
        description="job-progressed a second of all jobs in one of the 16 partitions: of many, each tells less",
    )
    forget_after_s: float = Field(
        DEFAULTS.forget_after_s,
        ge=1,
        le=3600,
        description="life of a completed shard's progress, which must be longer than any push takes",
    )
    shard_facts_per_s: float = Field(
        DEFAULTS.shard_facts_per_s, ge=0, le=1e6, description="leases and completions published one by one, per job"
    )

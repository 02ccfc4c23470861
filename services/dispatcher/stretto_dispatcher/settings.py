"""What the dispatcher can be told: times of the ledger."""

from __future__ import annotations

from pydantic import Field
from stretto_core.dispatcher import LedgerSettings
from stretto_runtime import Settings


class DispatcherSettings(Settings):
    """Read from ``STRETTO_DISPATCHER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    lease_timeout_s: float = Field(30.0, gt=5, le=3600, description="a worker silent for so long loses its shard")
    wait_s: float = Field(0.5, gt=0, le=60, description="a worker that finds nothing free asks again after")
    progress_every_s: float = Field(2.0, ge=0.1, le=600, description="time between two job-progressed")
    forget_after_s: float = Field(15.0, ge=1, le=3600, description="longer than any push can be under way")
    shard_facts_per_s: float = Field(50.0, ge=0, le=1e6, description="leases and completions told, per job")

    def ledger(self) -> LedgerSettings:
        return LedgerSettings(
            lease_timeout_s=self.lease_timeout_s,
            wait_s=self.wait_s,
            progress_every_s=self.progress_every_s,
            forget_after_s=self.forget_after_s,
            shard_facts_per_s=self.shard_facts_per_s,
        )

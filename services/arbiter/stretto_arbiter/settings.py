"""What the arbiter can be told: the capacity, the objective, the hysteresis."""

from __future__ import annotations

import os

from pydantic import Field
from stretto_core.arbiter.selection import Objective
from stretto_core.arbiter.state import ArbiterSettings as MachineSettings
from stretto_messages.values import Resources
from stretto_runtime import Settings


def machine_memory_bytes() -> int:
    """This machine's memory: the default of an installation on one machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class ArbiterSettings(Settings):
    """Read from ``STRETTO_ARBITER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    journal_ttl_s: int = Field(7 * 86400, ge=3600, description="life of its ticks: decisions can be replayed so long")
    cpu_cores: float = Field(default_factory=lambda: float(os.cpu_count() or 1), gt=0, description="of the cluster")
    memory_bytes: int = Field(default_factory=machine_memory_bytes, ge=2**20, description="of the cluster")
    algorithm: str = Field("hull", description="of each round; as `stretto whatif algorithms` lists them")
    beside: str = Field("exact", description="studies rounds that prove too little, beside them; empty: nothing does")
    study_gap: float = Field(0.001, ge=0, le=1, description="of a round that is studied; of a study that is adopted")
    patience_s: float = Field(1.0, ge=0, le=3600, description="for a study, of those that it may serve better")
    study_timeout_s: float = Field(60.0, gt=0, description="a study that takes longer is given up")
    objective: Objective = Field("efficiency", description="Eq. 12's, throughput gain, or completion times")
    rho: float = Field(2.5, ge=-20, le=20, description="Eq. 14: > 0 prefers jobs that finish soon")
    gain_fraction_min: float = Field(0.10, ge=0, le=10, description="hysteresis, beyond the prediction's error")
    settle_s: float = Field(20.0, ge=0, description="between two changes of a job for its throughput")
    return_again_s: float = Field(900.0, ge=0, description="between two returns of a job to plans that it had before")
    round_s: float = Field(2.0, ge=0, description="between two cluster-wide choices")
    decisions_most: int = Field(100, ge=1, description="of one round; who is deferred comes first in the next")
    apply_timeout_s: float = Field(300.0, ge=10, description="an actuator silent for so long is not waited for")
    leave_timeout_s: float = Field(900.0, ge=1, description="a completed job's pods are counted for at most so long")
    stop_grace_s: float = Field(20.0, ge=0, description="a cancelled or failed job's pods are counted for so long")
    no_room_s: float = Field(300.0, ge=0, description="what a pod found no room for is tried again after so long")
    shrink_after_s: float = Field(60.0, ge=0, description="memory is given back so long after the last change")

    def machine(self) -> MachineSettings:
        return MachineSettings(
            capacity=Resources(self.cpu_cores, self.memory_bytes),
            objective=self.objective,
            rho=self.rho,
            gain_fraction_min=self.gain_fraction_min,
            settle_s=self.settle_s,
            return_again_s=self.return_again_s,
            round_s=self.round_s,
            decisions_most=self.decisions_most,
            apply_timeout_s=self.apply_timeout_s,
            leave_timeout_s=self.leave_timeout_s,
            stop_grace_s=self.stop_grace_s,
            no_room_s=self.no_room_s,
            shrink_after_s=self.shrink_after_s,
            beside=self.beside,
            study_gap=self.study_gap,
            patience_s=self.patience_s,
            study_timeout_s=self.study_timeout_s,
        )

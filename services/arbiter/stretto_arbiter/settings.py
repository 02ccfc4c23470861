"""Settings of the arbiter: the capacity, the objective, the hysteresis."""

from __future__ import annotations

from pydantic import Field
from stretto_core.algorithms import SELECT
from stretto_core.arbiter.selection import Objective
from stretto_core.arbiter.state import ArbiterSettings as MachineSettings
from stretto_messages.values import NOTHING, Resources
from stretto_runtime.settings import ClusterSettings, machine_settings

DEFAULT = MachineSettings(capacity=NOTHING)
"""Every default of a decision is stated in core, where the simulator reads it too."""


class ArbiterSettings(ClusterSettings):
    """Read from ``STRETTO_ARBITER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    journal_ttl_s: int = Field(7 * 86400, ge=3600, description="life of its ticks: decisions can be replayed so long")
    algorithm: str = Field(SELECT.default, description="of each round; as `stretto whatif algorithms` lists them")
    background_algorithm: str = Field(
        DEFAULT.background_algorithm, description="solves rounds of a large gap again; empty: no algorithm does"
    )
    background_gap: float = Field(
        DEFAULT.background_gap,
        ge=0,
        le=1,
        description="of a round solved again in the background; of a solution adopted",
    )
    patience_s: float = Field(
        DEFAULT.patience_s, ge=0, le=3600, description="wait of the jobs that may profit from a background solve"
    )
    background_timeout_s: float = Field(
        DEFAULT.background_timeout_s, gt=0, description="a background solve that takes longer is given up"
    )
    objective: Objective = Field(DEFAULT.objective, description="Eq. 12's, throughput gain, or completion times")
    rho: float = Field(DEFAULT.rho, ge=-20, le=20, description="Eq. 14: > 0 prefers jobs that finish soon")
    gain_fraction_min: float = Field(
        DEFAULT.gain_fraction_min, ge=0, le=10, description="hysteresis, beyond the prediction's error"
    )
    settle_s: float = Field(DEFAULT.settle_s, ge=0, description="between two changes of a job for its throughput")
    return_again_s: float = Field(
        DEFAULT.return_again_s, ge=0, description="between two returns of a job to plans that it had before"
    )
    round_s: float = Field(DEFAULT.round_s, ge=0, description="between two cluster-wide choices")
    decisions_most: int = Field(
        DEFAULT.decisions_most, ge=1, description="of one round; who is deferred comes first in the next"
    )
    apply_timeout_s: float = Field(
        DEFAULT.apply_timeout_s, ge=10, description="an actuator silent for so long is not waited for"
    )
    leave_timeout_s: float = Field(
        DEFAULT.leave_timeout_s, ge=1, description="a completed job's pods are counted for at most so long"
    )
    stop_grace_s: float = Field(
        DEFAULT.stop_grace_s, ge=0, description="a cancelled or failed job's pods are counted for so long"
    )
    no_room_s: float = Field(
        DEFAULT.no_room_s, ge=0, description="what a pod found no room for is tried again after so long"
    )
    shrink_after_s: float = Field(
        DEFAULT.shrink_after_s, ge=0, description="memory is given back so long after the last change"
    )

    def machine(self) -> MachineSettings:
        """Return the settings of the machine."""
        return machine_settings(MachineSettings, self, capacity=Resources(self.cpu_cores, self.memory_bytes))

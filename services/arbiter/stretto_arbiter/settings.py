"""Settings of the arbiter: the capacity, the objective, the hysteresis."""

from __future__ import annotations

from pydantic import Field
from stretto_core.algorithms import SELECT, SHARE
from stretto_core.arbiter.selection import Objective
from stretto_core.arbiter.state import ArbiterSettings as MachineSettings
from stretto_messages.values import NOTHING
from stretto_runtime.settings import ClusterSettings, TeamsSettings, machine_settings

DEFAULT = MachineSettings(capacity=NOTHING)
"""Every default of a decision is stated in core, where the simulator reads it too."""


class ArbiterSettings(ClusterSettings, TeamsSettings):
    """Read from ``STRETTO_ARBITER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    journal_ttl_s: int = Field(
        7 * 86400, ge=3600, description="time for which ticks are kept; older decisions cannot be replayed"
    )
    algorithm: str = Field(
        SELECT.default, description="selection algorithm of a round; `stretto whatif algorithms` lists them"
    )
    background_algorithm: str = Field(
        DEFAULT.background_algorithm, description="algorithm that solves rounds of a large gap again; empty: none"
    )
    data_workers: str = Field(
        SHARE.default, description="policy of sharing out data workers; `stretto whatif algorithms` lists them"
    )
    background_gap: float = Field(
        DEFAULT.background_gap,
        ge=0,
        le=1,
        description="least gap of a round that is solved again, and least gain of an answer that is adopted",
    )
    patience_s: float = Field(
        DEFAULT.patience_s, ge=0, le=3600, description="longest wait of a job that may profit from a background solve"
    )
    background_timeout_s: float = Field(
        DEFAULT.background_timeout_s, gt=0, description="a background solve that takes longer is given up"
    )
    objective: Objective = Field(
        DEFAULT.objective,
        description="sum that a round maximises: Eq. 12's efficiency, throughput gain, or completion; cost: "
        "efficiency, of plans alone that train a sample for less",
    )
    rho: float = Field(
        DEFAULT.rho, ge=0, le=20, description="exponent of Eq. 14; above 0, jobs that finish soon are preferred"
    )
    gain_fraction_min: float = Field(
        DEFAULT.gain_fraction_min,
        ge=0,
        le=10,
        description="least gain of a change, beyond the prediction's error (hysteresis)",
    )
    settle_s: float = Field(
        DEFAULT.settle_s, ge=0, description="least time between two changes of a job for its throughput"
    )
    return_again_s: float = Field(
        DEFAULT.return_again_s, ge=0, description="least time between two returns of a job to plans that it had before"
    )
    round_s: float = Field(DEFAULT.round_s, ge=0, description="least time between two rounds")
    decisions_most: int = Field(
        DEFAULT.decisions_most, ge=1, description="most jobs that a round decides; the others come first in the next"
    )
    apply_timeout_s: float = Field(
        DEFAULT.apply_timeout_s,
        ge=10,
        description="longest wait for an actuator that does not report a plan as applied",
    )
    leave_timeout_s: float = Field(
        DEFAULT.leave_timeout_s, ge=1, description="longest time for which the pods of a completed job are counted"
    )
    stop_grace_s: float = Field(
        DEFAULT.stop_grace_s,
        ge=0,
        description="time for which the pods of a cancelled or failed job are counted, those of a finished one at most",
    )
    no_room_s: float = Field(
        DEFAULT.no_room_s, ge=0, description="time after which a plan is tried again whose pod found no room"
    )
    shrink_after_s: float = Field(
        DEFAULT.shrink_after_s, ge=0, description="time after the last change at which memory is given back"
    )

    def machine(self) -> MachineSettings:
        """Return the settings of the machine."""
        return machine_settings(MachineSettings, self, capacity=self.capacity, devices=self.devices, quotas=self.quotas)

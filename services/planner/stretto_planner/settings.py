"""Settings of the planner: the cluster's size, the first plan without history, the amount of exploration."""

from __future__ import annotations

from pydantic import Field
from stretto_core.algorithms import PARETO
from stretto_core.model.pareto import Overheads
from stretto_core.model.throughput import AXES, COUNTS
from stretto_core.planner.exploration import ExplorationLimits
from stretto_core.planner.state import HistorySettings
from stretto_core.planner.state import PlannerSettings as MachineSettings
from stretto_messages.values import NOTHING, Plan
from stretto_runtime.settings import ClusterSettings, machine_settings

DEFAULT = MachineSettings(room=NOTHING)
"""Every default of a decision is stated in core, where the simulator reads it too."""
HISTORY = HistorySettings()


class PlannerSettings(ClusterSettings):
    """Read from ``STRETTO_PLANNER_<FIELD>``, or from ``STRETTO_<FIELD>`` as every service's settings are."""

    algorithm: str = Field(
        PARETO.default, description="algorithm of the Pareto front; `stretto whatif algorithms` lists them"
    )
    cold_start_cpu_cores: float = Field(
        DEFAULT.cold_start.worker_cpu_cores,
        gt=0,
        le=1024,
        description="cores of a pod in the first plan of a job unlike all past ones",
    )
    cold_start_worker_memory_bytes: int = Field(DEFAULT.cold_start.worker_memory_bytes, ge=2**20)
    cold_start_ps_memory_bytes: int = Field(DEFAULT.cold_start.ps_memory_bytes, ge=2**20)
    windows_min: int = Field(
        DEFAULT.windows_min, ge=1, le=100, description="settled windows after which a plan is judged"
    )
    window_s: float = Field(DEFAULT.window_s, gt=0, description="length of the profiler's windows")
    payback_factor: float = Field(
        DEFAULT.payback_factor,
        ge=0,
        description="least training left after a measurement, in multiples of the time that it takes",
    )
    cpu_step: float = Field(DEFAULT.cpu_step, gt=0, description="step of cores between two plans")
    explorations_max: int = Field(
        DEFAULT.exploration.explorations_max,
        ge=0,
        le=50,
        description="most plans that a job tries in order to measure them",
    )
    optimistic_gain_min: float = Field(
        DEFAULT.exploration.optimistic_gain_min, ge=0, description="least optimistic gain of a plan that is tried"
    )
    explore_cpu: bool = Field(False, description="vary the cores of pods too, after the counts")
    worker_change_s: float = Field(
        DEFAULT.overheads.worker_change_s, ge=0, description="training lost by a change of workers, until measured"
    )
    ps_change_s: float = Field(
        DEFAULT.overheads.ps_change_s, ge=0, description="training lost by moving one PS, until measured"
    )
    similar_jobs: int = Field(HISTORY.similar_jobs, ge=1, le=20, description="Algorithm 1's k")
    smoothing: float = Field(HISTORY.smoothing, gt=0, lt=1, description="Eq. 10's mu")
    similarity_min: float = Field(HISTORY.similarity_min, ge=0, le=1, description="past jobs below it do not count")

    def machine(self) -> MachineSettings:
        """Return the settings of a job's machine."""
        cold_start = Plan(
            workers=1,
            ps=1,
            worker_cpu_cores=self.cold_start_cpu_cores,
            ps_cpu_cores=self.cold_start_cpu_cores,
            worker_memory_bytes=self.cold_start_worker_memory_bytes,
            ps_memory_bytes=self.cold_start_ps_memory_bytes,
        )
        axes = AXES if self.explore_cpu else COUNTS
        return machine_settings(
            MachineSettings,
            self,
            room=self.capacity,
            cold_start=cold_start,
            devices=self.devices,
            exploration=machine_settings(ExplorationLimits, self, axes=axes),
            overheads=machine_settings(Overheads, self),
        )

    def history(self) -> HistorySettings:
        """Return the settings of the machine that remembers past jobs."""
        return machine_settings(HistorySettings, self)

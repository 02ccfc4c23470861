"""States of the planner's two machines, of one job and of the history of jobs, and their settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_messages.base import DEFAULT_TEAM, GIB
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import CandidatesComputed, HistoryRecorded
from stretto_messages.values import FeedProfile, Plan, Resources

from stretto_core.model.mixed import StageRatio
from stretto_core.model.pareto import Overheads, Verified
from stretto_core.model.types import DeviceType, JobProfile
from stretto_core.planner.exploration import ExplorationLimits
from stretto_core.planner.programs.sizing import ProgramUse, SizingRules
from stretto_core.planner.tuning import TuningState
from stretto_core.planner.tuning_rules import TuningRules


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Limits of proposals, and what a measurement must be worth.

    ``room`` is the whole cluster: no larger plan is proposed. ``cold_start`` is the first plan of a job without similar
    past jobs: its server has room for 3 million rows of 16 weights until the memory watch knows more. A plan is judged
    after ``windows_min`` windows of ``window_s``. A measurement is made only if the job still lasts ``payback_factor``
    times as long afterwards, so that there is time to leave a worse plan. ``cpu_step`` in cores. Candidates are
    published again if the log of a throughput has changed by ``republish_change``. ``devices``: the cluster's types.
    """

    room: Resources
    cold_start: Plan = field(default_factory=lambda: Plan(1, 1, 1.0, 1.0, 2 * GIB, GIB // 2))
    windows_min: int = 3
    window_s: float = 5.0
    payback_factor: float = 2.0
    cpu_step: float = 0.5
    candidates_max: int = 64
    republish_change: float = 0.03
    devices: tuple[DeviceType, ...] = ()
    exploration: ExplorationLimits = field(default_factory=ExplorationLimits)
    overheads: Overheads = field(default_factory=Overheads)
    tuning: TuningRules = field(default_factory=TuningRules)
    sizing: SizingRules = field(default_factory=SizingRules)


@dataclass(slots=True)
class PlanState:
    """One job as the planner knows it.

    ``applied_version`` 0: no plan is in force yet. ``pending``: a proposal has no answer yet. ``explored`` counts the
    measurements; ``explored_enough`` is the reason why there are no more. ``throughput`` is that of the last settled
    window; all settled windows under the plan have ``settled_samples`` in ``settled_s``.
    """

    job: str = ""
    team: str = DEFAULT_TEAM
    profile: JobProfile | None = None
    submitted_s: float = 0.0
    started: bool = False
    ended: bool = False
    completed: bool = False
    plan: Plan | None = None
    applied_version: int = 0
    decided_version: int = 0
    decided_previous: Plan | None = None
    pending: bool = False
    explored: int = 0
    explored_enough: str = ""
    refused: list[Plan] = field(default_factory=list[Plan])
    devices_tried: list[str] = field(default_factory=list[str])
    mixes: list[Verified] = field(default_factory=list[Verified])
    """Plans with workers on devices, as they were measured."""
    stage_ratios: list[StageRatio] = field(default_factory=list[StageRatio])
    """Measured times of stages, as ratios to what the model predicts."""
    stage_windows: int = 0
    """Settled windows of the plan in force, if that has several stages."""
    refused_at_s: float = 0.0
    samples_done: int = 0
    throughput: float = 0.0
    settled_samples: float = 0.0
    settled_s: float = 0.0
    ps_memory_peak_bytes: int = 0
    overheads: Overheads | None = None
    back_s: float | None = None
    """Time from the launch of a worker on a device until it is ready; None: none was launched yet."""
    throughput_before: float = 0.0
    rates_while_changing: list[float] = field(default_factory=list[float])
    model: ModelFitted | None = None
    published: CandidatesComputed | None = None
    feed: FeedProfile | None = None
    """The data queue in the last settled window."""
    tuning: TuningState = field(default_factory=TuningState)
    program: ProgramUse = field(default_factory=ProgramUse)


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """``similar_jobs`` is Algorithm 1's k, ``smoothing`` Eq. 10's mu; past jobs below ``similarity_min`` do not
    count. ``jobs_kept`` past jobs are remembered.
    """

    similar_jobs: int = 5
    smoothing: float = 0.5
    similarity_min: float = 0.3
    jobs_kept: int = 500


@dataclass(slots=True)
class HistoryState:
    """Past jobs by name, oldest first."""

    past: dict[str, HistoryRecorded] = field(default_factory=dict[str, HistoryRecorded])

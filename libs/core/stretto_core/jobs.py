"""What fitter, planner and arbiter tell each other about jobs: one machine's fact is another's event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stretto_messages.values import Plan, Resources, Value

from stretto_core.model.pareto import Candidate
from stretto_core.model.throughput import Configuration, FittedModel, KnownModel
from stretto_core.model.types import JobProfile
from stretto_core.planner.warmstart import PastJob, SimilarJob

PlanKind = Literal["initial", "warm-start", "measure", "improve", "memory", "rebalance", "fit-capacity", "requested"]
Outcome = Literal["completed", "failed", "cancelled", "gone"]


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """The job exists, with what its specification says."""

    job: str
    profile: JobProfile


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """How far the job is. ``throughput`` in samples per second over the last seconds, by the ledger's count."""

    job: str
    samples_done: int
    samples_total: int
    throughput: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """``completed``: every sample is trained, pods are going; ``gone``: they are gone; the others end at once."""

    job: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ProfileMeasured:
    """One window of one job under one plan. ``settled`` is false while pods start, leave or are being migrated.

    ``components_s`` by the names of ``throughput.COMPONENTS``; ``ps_memory_used_bytes`` is the fullest PS's.
    """

    job: str
    plan_version: int
    plan: Plan
    batch_size: int
    window_s: float
    step_time_s: float
    components_s: dict[str, float]
    throughput: float
    ps_memory_used_bytes: int
    settled: bool


@dataclass(frozen=True, slots=True)
class MeasuredConfiguration:
    """A configuration's robust step time over its windows. ``log_sd``: standard error of its logarithm."""

    configuration: Configuration
    step_time_s: float
    windows: int
    log_sd: float

    @property
    def throughput(self) -> float:
        """Samples per second (Eq. 1)."""
        return self.configuration.workers * self.configuration.batch_size / self.step_time_s


@dataclass(frozen=True, slots=True)
class ModelFitted:
    """The job's throughput model, what it rests on, and how it does at the plan in force."""

    job: str
    model: FittedModel
    windows: int
    measured: tuple[MeasuredConfiguration, ...]
    plan_version: int
    plan: Plan
    batch_size: int
    measured_step_time_s: float
    predicted_step_time_s: float
    predicted_low_s: float
    predicted_high_s: float


@dataclass(frozen=True, slots=True)
class HistoryRecorded:
    """A past job joins the history."""

    job: str
    past: PastJob


@dataclass(frozen=True, slots=True)
class HistoryMatched:
    """The past jobs most similar to a new one, least similar first, and their smoothed plan (None: none similar).

    ``model``: of the most similar one of which there is any.
    """

    job: str
    metadata: dict[str, Value]
    matches: tuple[SimilarJob, ...]
    smoothing: float
    plan: Plan | None
    model: KnownModel | None = None


@dataclass(frozen=True, slots=True)
class PlanProposed:
    """One plan that the job should have next. Throughputs in samples per second, where known."""

    job: str
    kind: PlanKind
    plan: Plan
    cost_per_hour: float
    reasons: tuple[str, ...]
    throughput: float | None = None
    throughput_low: float | None = None
    throughput_high: float | None = None


@dataclass(frozen=True, slots=True)
class CandidatesComputed:
    """The Pareto front around the plan in force, cheapest first. ``throughput`` is that plan's own."""

    job: str
    plan_version: int
    plan: Plan
    throughput: float
    algorithm: str
    plans_considered: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that was considered and not taken; ``efficiency`` is its term of the objective (Eq. 12)."""

    plan: Plan
    throughput: float
    cost_per_hour: float
    efficiency: float
    why_not: str


@dataclass(frozen=True, slots=True)
class Studied:
    """A slower algorithm's look at a round, beside it.

    ``value``: what a choice with its answer reaches at present, ``instead_of``: what the round's own does; ``gap``:
    what it proved of what it was asked. None where there is no answer.
    """

    algorithm: str
    outcome: Literal["begun", "adopted", "dropped"]
    reason: str
    value: float | None = None
    instead_of: float | None = None
    gap: float | None = None
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class StudyDone:
    """The answer to a study: the plans that it gives to jobs; to the others of its jobs it gives none.

    ``gap``: proven, as a share of the bound; None: nothing is. ``fault``: why there is no answer.
    """

    number: int
    plans: dict[str, Plan]
    gap: float | None
    took_s: float
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """The choice over all jobs that a plan comes from: what it reaches of its objective, and the most that any could.

    ``term`` is this plan's part of ``value``, ``jobs`` how many could get something, ``algorithm`` who chose.
    """

    algorithm: str
    objective: str
    jobs: int
    value: float
    bound: float
    term: float
    study: Studied | None = None

    @property
    def gap(self) -> float:
        """What may be missing to the optimum at most, as a share of the bound."""
        return (self.bound - self.value) / self.bound if self.bound > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PlanDecided:
    """The plan that the job has to have; ``version`` grows by one with each decision of the job.

    ``free`` is what the cluster has left after it. ``round``: where it was chosen over all jobs.
    """

    job: str
    version: int
    kind: PlanKind
    plan: Plan
    previous: Plan | None
    cost_per_hour: float
    reasons: tuple[str, ...]
    algorithm: str
    free: Resources
    throughput: float | None = None
    throughput_low: float | None = None
    throughput_high: float | None = None
    throughput_before: float | None = None
    alternatives: tuple[Alternative, ...] = field(default_factory=tuple)
    round: Round | None = None


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """Nothing can be given now. A job that waits to start is considered again when capacity comes free."""

    job: str
    kind: PlanKind
    wanted: Plan
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanApplied:
    """All pods match the plan of that version, ``took_s`` after it was decided."""

    job: str
    version: int
    plan: Plan
    took_s: float


@dataclass(frozen=True, slots=True)
class ReplacementAsked:
    """The actuator would start a server beyond the plan, to take the place of the parameter server ``pod``."""

    job: str
    pod: str


@dataclass(frozen=True, slots=True)
class ReplacementDecided:
    """Whether there is room for it, until ``ReplacementEnded``."""

    job: str
    pod: str
    granted: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplacementEnded:
    """The job has no more servers than its plan again: ``pod`` has left, or the other one was given up."""

    job: str
    pod: str


@dataclass(frozen=True, slots=True)
class PodUnplaced:
    """A pod of the job's plan cannot run: no node has room for it, or an account is used up, as ``detail`` says."""

    job: str
    pod: str
    role: Literal["worker", "ps"]
    detail: str


@dataclass(frozen=True, slots=True)
class PodSettled:
    """The pod waits for no room (any more): it has started, or it will not."""

    job: str
    pod: str


@dataclass(frozen=True, slots=True)
class OomForecast:
    """What each PS of the job needs, to its end; ``grow`` is urgent, ``shrink`` gives memory back."""

    job: str
    action: Literal["none", "grow", "shrink"]
    recommended_ps_memory_bytes: int
    reason: str

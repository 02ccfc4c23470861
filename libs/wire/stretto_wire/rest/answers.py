"""Bodies and answers of the REST interface beside the views: records for JSON, with their schemas in openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from stretto_messages.arbiter import Amount
from stretto_messages.base import EpochSeconds
from stretto_messages.gateway import CallerRole
from stretto_messages.values import DATA_WORKERS_MAX, PARTITIONS_MAX, PS_MAX, DataPartition, Interval, Match, Plan

from ..codec import COMPLETE
from ..jobspec.spec import JobSpec
from .views import Status


class Answer(BaseModel):
    """The body of an answer."""

    model_config = ConfigDict(**COMPLETE, use_attribute_docstrings=True, defer_build=True)


class Submitted(Answer):
    """A job was accepted now, or earlier: ``status`` is its present state."""

    job: str
    created: bool
    seq: int
    status: Status


class Wanted(BaseModel, extra="forbid"):
    """The wanted number of pods; a number that is not given stays as it is."""

    model_config = ConfigDict(use_attribute_docstrings=True, defer_build=True)

    workers: Annotated[int, Field(ge=0, le=10_000)] | None = None
    ps: Annotated[int, Field(ge=1, le=PS_MAX)] | None = None
    data: Annotated[int, Field(ge=0, le=DATA_WORKERS_MAX)] | Literal["auto"] | None = None
    """Data workers beyond the plan; auto: as many as the data queue tells, as without a request."""


class Requested(Answer):
    """The requested plan, or the present one; plan-decided, plan-refused or data-workers-decided follows."""

    job: str
    plan: Plan


class Arrived(BaseModel, extra="forbid", defer_build=True):
    """The data of a growing job: totals of partitions, which only grow, and whether no more will come."""

    partitions: Annotated[tuple[DataPartition, ...], Field(max_length=PARTITIONS_MAX)] = ()
    close: bool = Field(False, description="no more data will come; the job completes when all of it is trained")


class DataAnswer(Answer):
    """The data of the job after the change."""

    job: str
    growing: bool
    samples: int
    partitions: int


class CheckpointAnswer(Answer):
    """A checkpoint was started; the event checkpoint-saved follows."""

    job: str
    id: str | None


class GatewayStatus(Answer):
    """Progress of the read model."""

    ready: bool
    last_seq: int
    jobs: int
    jobs_by_status: dict[Status, int]
    """Number of jobs in each state; a state without jobs is absent."""
    strangers: int
    """Number of events of jobs that were never submitted."""


class Me(Answer):
    """The caller, as its token says, and the gateway that it has reached."""

    name: str
    role: CallerRole
    """Viewer and observer read, a submitter also submits and changes its own jobs, an admin changes all."""
    team: str
    reads_all_teams: bool
    expires_at_s: EpochSeconds | None
    """When the token expires; null: never."""
    installation: str
    version: str


class SignOn(Answer):
    """The OpenID issuer whose tokens are accepted, and the client with which a browser asks for one (code and PKCE)."""

    issuer: str
    audience: str
    client_id: str | None
    """Null: no client for browsers is configured, so a token comes from elsewhere."""
    scopes: str


class Login(Answer):
    """How to become a caller. ``ways``: none: everybody is accepted; token: a bearer token of this gateway; oidc: a
    token of the issuer."""

    ways: list[Literal["none", "token", "oidc"]]
    oidc: SignOn | None


class HolderView(Answer):
    """A job that holds resources. During a change it holds the larger of both plans in each resource."""

    job: str
    team: str
    plan_version: int
    plan: Plan
    held: Amount
    data_workers: int
    """Data workers beyond the plan, which ``data_held`` is for."""
    data_held: Amount
    changing: bool
    leaving: bool
    """It has ended, and holds resources until its pods are gone."""


class WaitingView(Answer):
    """A job that waits to start. A job of a team that may not be read has no name."""

    position: int
    job: str | None
    team: str | None
    submitted_at_s: EpochSeconds
    priority: float
    wanted: Plan | None
    least: Amount
    lacking: Amount
    """The part of the least it can start with that is not free now."""
    reason: str


class UnplaceableView(Answer):
    """Room that is not believed in: a pod found none for it, until it is tried again."""

    job: str | None
    pod: str | None
    amount: Amount
    until_s: EpochSeconds
    detail: str


class DeviceView(Answer):
    """A type of devices that workers may have. A worker has one unit, with its cores and its memory."""

    name: str
    price_per_hour: float
    count: int
    cpu_cores: float
    memory_bytes: int


class ServiceView(Answer):
    """A service: its replicas, and how many of the 16 partitions they own. It decides for all jobs only with all."""

    service: str
    replicas: int
    partitions: int
    ready: bool


AlertName = Literal[
    "StrettoPartitionWithoutOwner", "StrettoServiceGone", "StrettoStreamFilling", "StrettoStreamFull",
    "StrettoStreamDamaged", "StrettoBusStoresNothing", "StrettoGatewayNotReady", "StrettoCheckpointLate",
    "StrettoServerSpilling", "StrettoSpillFault",
]  # fmt: skip


class AlertView(Answer):
    """A condition that holds now: its alert, and the service, stream or job that it is about."""

    alert: AlertName
    subject: str
    detail: str


class Alerts(Answer):
    """The alerts that fire now, as this gateway sees them."""

    firing: list[AlertView]
    judged: list[AlertName]
    """Alerts that this gateway can judge; only Prometheus sees the others."""


class TeamView(Answer):
    """A team: what its live jobs hold, and its quota. Null: no limit."""

    team: str
    jobs: int
    """Live jobs."""
    held: Amount
    jobs_max: int | None
    cpu_cores_max: float | None
    memory_bytes_max: int | None
    extended_max: dict[str, int]
    """Devices by the names of extended resources; one that is absent has no limit."""
    priority_max: float | None
    weight: float
    """Its fair share of the cluster is in proportion to this."""
    borrow: bool
    """It may hold more than its quota while no other team asks for its own."""


class ClusterView(Answer):
    """The cluster: what there is, who holds it, and who waits for it, in the order in which jobs are tried."""

    capacity: Amount
    held: Amount
    free: Amount
    unplaceable: list[UnplaceableView]
    holders: list[HolderView]
    """By their names, at most 200; ``after`` leads to the others."""
    others: int
    """Number of holders on this page that are of teams that the caller may not read."""
    after: str | None
    waiting: list[WaitingView]
    """The first 50."""
    waiting_count: int
    services: list[ServiceView] = []
    devices: list[DeviceView] = []
    """The types of devices that the installation states."""
    teams: list[TeamView] = []
    """The teams that have jobs, and those that a quota names, as far as the caller may read them."""
    quota_holder: Literal["stretto", "kueue"] = "stretto"
    """Kueue: its queues apply quotas, and those of Stretto have no effect."""


class Prediction(Answer):
    """How a live job would go on under another plan, by its own fitted model; intervals are at 90 %."""

    job: str
    plan: Plan
    """The plan that was asked for, within the job's limits."""
    previous: Plan | None
    step_time_s: float
    step_time_interval_s: Interval
    """The interval of a new measurement."""
    throughput: float
    throughput_interval: Interval
    throughput_now: float
    cost_per_hour: float
    cost_to_end: float | None
    """Null, as the end, for a job whose data grow."""
    ends_at_s: float | None
    ends_at_interval_s: Interval | None
    ps_memory_at_end_bytes: int | None
    """Memory of a parameter server at the end, if the forecast's sum is spread evenly; null: without a forecast."""
    model_plan_version: int
    """Version of the plan in whose windows the model was fitted."""
    fits: bool | None = None
    """True: the cluster and the team's quota have room for it now. Null: the arbiter does not answer."""
    room: str = ""
    """Why it fits or does not, in words: what it needs, and what lacks."""
    extrapolated: bool = False
    """True: the size is outside what the model was fitted to."""
    measured: str = ""
    """The sizes that were measured, and how far this one is beyond them, in words."""


class PreviewFinding(Answer):
    """A reason why the submission would be refused, with the status and kind of its problem."""

    status: int
    kind: str
    detail: str
    field: str
    value: str
    remedy: str


class FirstPlan(Answer):
    """The plan that a job would start with if it came now, and the past jobs from which it is derived."""

    kind: str
    plan: Plan
    reasons: tuple[str, ...]
    matches: tuple[Match, ...]
    cost_per_hour: float
    throughput: float | None
    """By the model of the most similar past job that has one."""
    duration_s: float | None
    """Time that all samples take at this throughput."""
    fits: bool | None
    """True: its resources are free now. Null: the arbiter does not answer."""
    room: str = ""
    """Why it fits or does not, in words: what it needs, and what lacks."""


class Preview(Answer):
    """The outcome that a submission would have. Nothing is submitted."""

    job: str
    accepted: bool
    findings: list[PreviewFinding]
    spec: JobSpec
    """The specification with its defaults."""
    cost_per_hour_min: float
    """Cost of the least plan within its limits."""
    cost_per_hour_max: float
    first_plan: FirstPlan | None
    """Null: the planner does not answer."""


class PodLog(Answer):
    """The last lines of a pod's log, separated by line feeds.

    ``is_short_end``: of a failed pod whose log is not in the store, or not yet. Its first line may be cut.
    """

    job: str
    pod: str
    text: str
    is_short_end: bool = False


class SpanView(Answer):
    """A span of a trace, as a service or pod wrote it."""

    trace_id: str
    span_id: str
    parent_id: str | None
    service: str | None
    name: str
    start_s: float
    end_s: float
    attributes: dict[str, Any]
    error: str | None


class TraceEvent(Answer):
    """An event in the trace of a job."""

    seq: int
    time_s: float
    service: str
    event: str


class JobTrace(Answer):
    """The trace of a job: its events, oldest first, and the spans that this machine and the collector keep."""

    job: str
    trace_id: str | None
    """None for a job that was submitted without a trace."""
    events: list[TraceEvent]
    """Without those of shards, progress and windows, which are too many; the latest 500."""
    spans: list[SpanView]
    missing: str | None = None
    """Spans that could not be read, and why."""

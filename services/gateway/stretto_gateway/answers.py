"""Bodies and answers of the REST interface beside the views: records for JSON, with their schemas in openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from stretto_messages.base import EpochSeconds
from stretto_messages.values import DATA_WORKERS_MAX, PARTITIONS_MAX, PS_MAX, DataPartition, Plan
from stretto_runtime.access.tokens import Role

from .views import COMPLETE, Status


class Answer(BaseModel):
    """The body of an answer."""

    model_config = ConfigDict(**COMPLETE)


class Submitted(Answer):
    """A job was accepted now, or earlier: ``status`` is its present state."""

    job: str
    created: bool
    seq: int
    status: Status


class Wanted(BaseModel, extra="forbid"):
    """The wanted number of pods; a number that is not given stays as it is."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    workers: Annotated[int, Field(ge=0, le=10_000)] | None = None
    ps: Annotated[int, Field(ge=1, le=PS_MAX)] | None = None
    data: Annotated[int, Field(ge=0, le=DATA_WORKERS_MAX)] | Literal["auto"] | None = None
    """Data workers beyond the plan; auto: as many as the data queue tells, as without a request."""


class Requested(Answer):
    """The requested plan, or the present one; plan-decided, plan-refused or data-workers-decided follows."""

    job: str
    plan: Plan


class Arrived(BaseModel, extra="forbid"):
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
    role: Role
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


class PodLog(Answer):
    """The last lines of a pod's log, separated by line feeds."""

    job: str
    pod: str
    text: str


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


class JobTrace(Answer):
    """The trace of a job. ``spans``: those that this machine keeps."""

    job: str
    trace_id: str | None
    """None for a job that was submitted without a trace."""
    spans: list[SpanView]

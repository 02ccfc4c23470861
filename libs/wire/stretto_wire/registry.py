"""Every subject once: its message, who publishes it and who reads it.

Streams, credentials, consumers and the documents in ``proto/`` are derived from :data:`CHANNELS`.

========  =================================  ==========================================================
kind      subject                            delivery
========  =================================  ==========================================================
``evt``   ``evt.v1.<service>.<event>.<job>`` a fact; stored, partitioned by job, read by anybody
``tel``   ``tel.v1.<role>.<pod>.<job>``      telemetry; stored for an hour
``rpc``   ``rpc.v1.<service>.<verb>.<job>``  request to the owner of the job; journalled before the reply
``pod``   ``pod.v1.<verb>.<pod>.<job>``      request straight to one pod
========  =================================  ==========================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import ValidationError

from . import events as e
from . import requests as r
from . import telemetry as t
from .base import MAX_MESSAGE_BYTES, POD_PATTERN, Message
from .errors import WireError

M = TypeVar("M", bound=Message)

Kind = Literal["evt", "tel", "rpc", "pod"]

PARTITIONS = 16
"""Fixed for the life of the stream: stored subjects and snapshots carry the partition."""

STREAM = "STRETTO"
SUBJECTS_OF_STREAM = ("evt.v1.>", "tel.v1.>", "journal.>", "fence.>")
PATTERN_OF_STREAM = "*.v1.*.*.*"
STORED_AS = f"{{{{partition({PARTITIONS},4)}}}}." + "{{wildcard(1)}}.v1.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}"
"""The stream's subject transform: what fits the pattern is stored with the job's partition in front."""

DEAD_LETTERS = "DLQ"
STATE = "KV_STATE"
STATE_PREFIX = "$KV.STATE."
"""The bucket of members, owners and snapshots, and what its subjects begin with."""
EVENTS_KEPT_S = 30 * 24 * 3600
TELEMETRY_KEPT_S = 3600
SHARD_FACTS_KEPT_S = 24 * 3600
"""most of what is ever published, and the ledger does not need it: its requests are journalled"""


@dataclass(frozen=True, slots=True)
class Channel:
    """A subject and what travels on it."""

    kind: Kind
    service: str
    """publisher of ``evt``, role of ``tel``, answering service of ``rpc``, role of the answering pod of ``pod``"""
    name: str
    message: type[Message]
    readers: tuple[str, ...] = ()
    """services that consume (``evt``, ``tel``) or call (``rpc``, ``pod``) it; ``*`` stands for external readers"""
    reply: type[Message] | None = None
    kept_s: int | None = None
    """how long the stream keeps it; None: as long as the stream keeps anything, or it is not stored"""

    @property
    def pattern(self) -> str:
        """The subject with wildcards for job and pod."""
        if self.kind == "tel":
            return f"tel.v1.{self.service}.*.*"
        if self.kind == "pod":
            return f"pod.v1.{self.name}.*.*"
        return f"{self.kind}.v1.{self.service}.{self.name}.*"

    @property
    def type_name(self) -> str:
        """The CloudEvents type."""
        return f"stretto.{self.service}.{self.name}.v1"


def _event(service: str, name: str, message: type[Message], *readers: str, kept_s: int | None = None) -> Channel:
    return Channel("evt", service, name, message, (*readers, "gateway", "*"), kept_s=kept_s)


CHANNELS: tuple[Channel, ...] = (
    _event("gateway", "job-submitted", e.JobSubmitted,
           "profiler", "planner", "arbiter", "dispatcher", "checkpoints", "oom", "actuator"),
    _event("gateway", "job-cancelled", e.JobCancelled,
           "profiler", "fitter", "planner", "arbiter", "dispatcher", "checkpoints", "oom", "actuator"),
    _event("gateway", "plan-requested", e.PlanRequested, "arbiter"),
    _event("gateway", "data-arrived", e.DataArrived, "dispatcher"),
    _event("gateway", "change-audited", e.ChangeAudited),
    _event("profiler", "profile-measured", e.ProfileMeasured, "fitter", "planner", "oom"),
    _event("profiler", "straggler-detected", e.StragglerDetected, "dispatcher"),
    _event("profiler", "straggler-cleared", e.StragglerCleared, "dispatcher"),
    _event("profiler", "hot-ps-detected", e.HotPsDetected, "actuator"),
    _event("profiler", "hot-ps-cleared", e.HotPsCleared, "actuator"),
    _event("fitter", "model-fitted", e.ModelFitted, "planner"),
    _event("planner", "history-recorded", e.HistoryRecorded, "planner"),
    _event("planner", "history-matched", e.HistoryMatched, "planner", "fitter"),
    _event("planner", "plan-proposed", e.PlanProposed, "arbiter"),
    _event("planner", "candidates-computed", e.CandidatesComputed, "arbiter"),
    _event("arbiter", "plan-decided", e.PlanDecided, "planner", "actuator", "profiler", "oom"),
    _event("arbiter", "plan-refused", e.PlanRefused, "planner"),
    _event("arbiter", "replacement-decided", e.ReplacementDecided, "actuator"),
    _event("actuator", "pod-started", e.PodStarted, "profiler", "arbiter"),
    _event("actuator", "pod-pending", e.PodPending, "arbiter"),
    _event("actuator", "pod-exited", e.PodExited, "profiler", "arbiter", "dispatcher", "oom"),
    _event("actuator", "pod-resized", e.PodResized, "profiler", "oom"),
    _event("actuator", "plan-applied", e.PlanApplied, "profiler", "planner", "arbiter", "oom"),
    _event("actuator", "servers-changed", e.ServersChanged, "checkpoints", "worker", "ps"),
    _event("actuator", "migration-started", e.MigrationStarted, "profiler", "checkpoints"),
    _event("actuator", "migration-finished", e.MigrationFinished, "profiler", "checkpoints"),
    _event("actuator", "replacement-asked", e.ReplacementAsked, "arbiter"),
    _event("actuator", "replacement-ended", e.ReplacementEnded, "arbiter"),
    _event("actuator", "job-finished", e.JobFinished, "arbiter", "checkpoints"),
    _event("actuator", "job-failed", e.JobFailed,
           "profiler", "fitter", "planner", "arbiter", "dispatcher", "checkpoints", "oom"),
    _event("dispatcher", "shard-leased", e.ShardLeased, kept_s=SHARD_FACTS_KEPT_S),
    _event("dispatcher", "shard-completed", e.ShardCompleted, kept_s=SHARD_FACTS_KEPT_S),
    _event("dispatcher", "shard-requeued", e.ShardRequeued),
    _event("dispatcher", "shard-abandoned", e.ShardAbandoned, "actuator"),
    _event("dispatcher", "job-progressed", e.JobProgressed, "profiler", "planner", "arbiter", "oom"),
    _event("dispatcher", "job-completed", e.JobCompleted,
           "profiler", "fitter", "planner", "arbiter", "checkpoints", "oom", "actuator"),
    _event("dispatcher", "evaluation-measured", e.EvaluationMeasured),
    _event("checkpoints", "checkpoint-saved", e.CheckpointSaved),
    _event("checkpoints", "checkpoint-flushed", e.CheckpointFlushed, "actuator"),
    _event("checkpoints", "checkpoint-restored", e.CheckpointRestored, "dispatcher", "actuator"),
    _event("checkpoints", "checkpoint-failed", e.CheckpointFailed, "actuator"),
    _event("oom", "oom-forecast", e.OomForecast, "arbiter"),
    Channel("tel", "worker", "reported", t.WorkerReported, ("profiler",), kept_s=TELEMETRY_KEPT_S),
    Channel("tel", "ps", "reported", t.PsReported, ("profiler",), kept_s=TELEMETRY_KEPT_S),
    Channel("rpc", "dispatcher", "next-shard", r.NextShard, ("worker",), r.NextShardReply),
    Channel("rpc", "dispatcher", "shard-heartbeat", r.ShardHeartbeat, ("worker",), r.ShardHeartbeatReply),
    Channel("rpc", "dispatcher", "release-shard", r.ReleaseShard, ("worker",), r.ReleaseShardReply),
    Channel("rpc", "dispatcher", "mark-ledger", r.MarkLedger, ("checkpoints",), r.MarkLedgerReply),
    Channel("rpc", "dispatcher", "audit-ledger", r.AuditLedger, ("gateway", "cli"), r.AuditLedgerReply),
    Channel("rpc", "actuator", "get-servers", r.GetServers,
            ("worker", "ps", "cli", "gateway", "actuator"), r.GetServersReply),
    Channel("rpc", "actuator", "renew-credentials", r.RenewCredentials, ("worker", "ps"), r.RenewCredentialsReply),
    Channel("rpc", "checkpoints", "save-checkpoint", r.SaveCheckpoint, ("gateway", "cli"), r.SaveCheckpointReply),
    Channel("pod", "pod", "ping", r.PodPing, ("actuator",), r.PodPingReply),
    Channel("pod", "ps", "take-buckets", r.TakeBuckets, ("actuator",), r.TakeBucketsReply),
    Channel("pod", "ps", "get-move-status", r.GetMoveStatus, ("actuator",), r.GetMoveStatusReply),
    Channel("pod", "ps", "get-ownership", r.GetOwnership, ("actuator", "checkpoints"), r.GetOwnershipReply),
    Channel("pod", "ps", "claim-buckets", r.ClaimBuckets, ("actuator",), r.ClaimBucketsReply),
    Channel("pod", "ps", "export-state", r.ExportState, ("checkpoints",), r.ExportStateReply),
    Channel("pod", "ps", "get-export-status", r.GetExportStatus, ("checkpoints",), r.GetExportStatusReply),
    Channel("pod", "ps", "import-state", r.ImportState, ("checkpoints",), r.ImportStateReply),
    Channel("pod", "worker", "train-under", r.TrainUnder, ("actuator",), r.TrainUnderReply),
    Channel("pod", "worker", "evaluate-model", r.EvaluateModel, ("actuator",), r.EvaluateModelReply),
    Channel("pod", "ps", "get-books", r.GetBooks, ("actuator", "gateway", "cli"), r.GetBooksReply),
)  # fmt: skip

_BY_MESSAGE = {channel.message: channel for channel in CHANNELS}
_FIXED = {channel.message: channel.pattern.removesuffix("*") for channel in CHANNELS if channel.kind in ("evt", "rpc")}
"""what is before the job in the subjects that name nothing else"""
_BY_ROUTE = {
    (channel.kind, "" if channel.kind == "pod" else channel.service, channel.name): channel for channel in CHANNELS
}


def channel_of(message: Message | type[Message]) -> Channel:
    """The channel of a message. KeyError for a reply: replies have no subject of their own."""
    return _BY_MESSAGE[message if isinstance(message, type) else type(message)]


def subject_of(message: Message, pod: str | None = None) -> str:
    """Where ``message`` is published. ``pod`` is needed for requests to pods."""
    if (fixed := _FIXED.get(type(message))) is not None:
        return fixed + message.job
    channel = channel_of(message)
    if channel.kind == "tel":
        return f"tel.v1.{channel.service}.{getattr(message, 'pod')}.{message.job}"  # noqa: B009
    if pod is None or not re.fullmatch(POD_PATTERN, pod):
        raise WireError("pod", pod, "a request to a pod needs the pod's name, such as ps-0")
    return f"pod.v1.{channel.name}.{pod}.{message.job}"


def channel_at(subject: str) -> Channel:
    """The channel of a subject, with or without the stored subject's leading partition. WireError if there is none."""
    tokens = subject.split(".")
    if tokens and tokens[0].isdigit():
        tokens = tokens[1:]
    route = None
    if len(tokens) == 5 and tokens[1] == "v1":
        kind, _, second, third, _job = tokens
        route = {"tel": (kind, second, "reported"), "pod": (kind, "", second)}.get(kind, (kind, second, third))
    elif len(tokens) == 6 and tokens[0] == "rpc":  # the server's mapping has put the partition before the job
        route = ("rpc", tokens[2], tokens[3])
    channel = _BY_ROUTE.get(route) if route else None  # type: ignore[arg-type]
    if channel is None:
        raise WireError("subject", subject, "a subject of the registry, such as evt.v1.arbiter.plan-decided.<job>")
    return channel


def parse(subject: str, data: bytes) -> Message:
    """The message on ``subject``. Raises WireError that names field, value and remedy; nothing else."""
    return parse_on(channel_at(subject), subject, data)


def parse_on(channel: Channel, subject: str, data: bytes) -> Message:
    """As ``parse``, where the subject's channel is known."""
    message = decode(channel.message, data)
    before, _, job = subject.rpartition(".")
    if message.job != job:
        raise WireError("job", message.job, f"the job of the subject, {job}")
    if channel.kind == "tel":
        pod, of_subject = getattr(message, "pod", ""), before.rpartition(".")[2]
        if pod != of_subject or not pod.startswith(f"{channel.service}-"):
            raise WireError("pod", pod, f"the pod of the subject, {of_subject}, of the role {channel.service}")
    return message


def decode(message_type: type[M], data: bytes) -> M:
    """Parse JSON of a known type."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError("(document)", f"{len(data)} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
    try:
        # what a newer writer added is ignored, also in a JobSpec; ``model_validate_json`` without what is not needed
        return message_type.__pydantic_validator__.validate_json(data, extra="ignore")
    except ValidationError as error:
        raise WireError.of(error, model=message_type) from error


def encode(message: Message) -> bytes:
    """JSON. Raises WireError when it is larger than anybody has to accept."""
    data = message.__pydantic_serializer__.to_json(message)  # ``model_dump_json`` without a text in between
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(
            "(document)", f"{len(data)} bytes of {type(message).__name__}", f"at most {MAX_MESSAGE_BYTES} bytes"
        )
    return data


def partition_of(key: str) -> int:
    """FNV-1a, 32 bits, modulo PARTITIONS: what the server's ``partition(16, …)`` computes."""
    value = 2166136261
    for byte in key.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value % PARTITIONS

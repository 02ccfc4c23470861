"""The registry of subjects: each with its message, publisher and readers.

Streams, permissions, consumers, the inputs of services and the documents in ``proto/`` are derived from
:data:`CHANNELS`.

========  =================================  ==========================================================
kind      subject                            delivery
========  =================================  ==========================================================
``evt``   ``evt.v1.<service>.<event>.<job>`` event; stored, partitioned by job, anybody may read it
``tel``   ``tel.v1.<role>.<pod>.<job>``      telemetry; in a stream of its own, stored for an hour at most
``rpc``   ``rpc.v1.<service>.<verb>.<job>``  request to the owner of the job; journalled before the reply
``pod``   ``pod.v1.<verb>.<pod>.<job>``      request straight to one pod
========  =================================  ==========================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stretto_messages import (
    actuator,
    arbiter,
    checkpoints,
    dispatcher,
    fitter,
    gateway,
    oom,
    planner,
    pods,
    profiler,
)
from stretto_messages.base import POD_PATTERN, Message
from stretto_messages.objects import decider

from ..codec import decode
from ..errors import WireError
from .submission import JobSubmitted, ObjectAdopted, PreviewPlan

Kind = Literal["evt", "tel", "rpc", "pod"]
Scope = Literal["job", "cluster"]

PARTITIONS = 16
"""Number of partitions; fixed for the life of the stream, since stored subjects and snapshots carry the partition."""

STREAM = "STRETTO"
SUBJECTS_OF_STREAM = ("evt.v1.>", "journal.>", "fence.>")
TELEMETRY = "TELEMETRY"
"""Stream of what pods report. It drops the oldest when it is full: no pod can fill the stream of facts."""
SUBJECTS_OF_TELEMETRY = ("tel.v1.>",)
PATTERN_OF_STREAM = "*.v1.*.*.*"
STORED_AS = f"{{{{partition({PARTITIONS},4)}}}}." + "{{wildcard(1)}}.v1.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}"
"""Subject transform of both streams: a subject that fits the pattern is stored with the job's partition in front."""

DEAD_LETTERS = "DLQ"
AUDIT = "AUDIT"
AUDIT_SUBJECT = "audit.gateway"
"""Stream of the audit log, and its one subject. Only the gateway reads it: its entries name people."""
STATE = "KV_STATE"
STATE_PREFIX = "$KV.STATE."
"""Bucket of members, owners and snapshots, and the prefix of its subjects."""
EVENTS_KEPT_S = 30 * 24 * 3600
TELEMETRY_KEPT_S = 3600
TELEMETRY_KEPT_PER_POD = 600
"""Reports of one pod that the stream holds: a pod that floods it replaces its own, and a reader finds no more."""
POD_ANSWER_S = 3600.0
"""Time within which a pod may answer a request: a bound of the settings that say how long services wait."""
PROFILES_KEPT_S = 12 * 3600
"""Retention of profiles: of 10,000 pods the bulk, a message for each job and window, with figures of each pod."""
SHARD_FACTS_KEPT_S = 24 * 3600
"""Retention of shard events, the bulk of all events. The dispatcher restores itself from its journalled requests."""

SERVICES = ("profiler", "fitter", "planner", "arbiter", "dispatcher", "checkpoints", "oom", "actuator", "gateway")
OPERATOR = "operator"
"""User of the command and of whoever makes the streams; may do everything within the account."""
FORWARDER = "forwarder"
"""Optional service that posts events to endpoints outside."""
DECIDER = "decider"
"""Optional service that decides the sizes of objects which other controllers run."""
USERS = (*SERVICES, FORWARDER, DECIDER, OPERATOR)
"""Users of the bus with a name of their own; pods and outside tools have others."""

ANYBODY = "*"
"""Stands for external readers."""


class Input(NamedTuple):
    """A message that a service consumes.

    With ``scope="job"`` the machine of the message's job handles it. With ``"cluster"`` the one machine with key
    ``"_"`` handles it for every job.
    """

    message: type[Message]
    scope: Scope = "job"


class ChannelReader(NamedTuple):
    """A service that consumes a channel, and the scope of the machine that handles the message."""

    service: str
    scope: Scope = "job"


def cluster(service: str) -> ChannelReader:
    """Return the reader whose one machine handles the message of every job."""
    return ChannelReader(service, "cluster")


@dataclass(frozen=True, slots=True)
class Channel:
    """A subject and its message."""

    kind: Kind
    service: str
    """Publisher of ``evt``, role of ``tel``, answering service of ``rpc``, role of the answering pod of ``pod``."""
    name: str
    message: type[Message]
    consumers: tuple[str | ChannelReader, ...] = ()
    """Services that consume (``evt``, ``tel``) or call (``rpc``, ``pod``) it; a plain name has the scope of a job."""
    reply: type[Message] | None = None
    kept_s: int | None = None
    """Retention in the stream, if shorter than the stream's. None: as long as that, or not stored at all."""
    query: bool = False
    """True for a request that changes no state: answered at once, neither journalled nor remembered."""

    @property
    def readers(self) -> tuple[str, ...]:
        """Names of the consumers, each once; :data:`ANYBODY` stands for external readers."""
        return tuple(dict.fromkeys(one if isinstance(one, str) else one.service for one in self.consumers))

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


def _event(
    service: str, name: str, message: type[Message], *consumers: str | ChannelReader, kept_s: int | None = None
) -> Channel:
    return Channel("evt", service, name, message, (*consumers, "gateway", ANYBODY), kept_s=kept_s)


def _telemetry(role: str, message: type[Message], *consumers: str | ChannelReader) -> Channel:
    return Channel("tel", role, "reported", message, (*consumers, "gateway"), kept_s=TELEMETRY_KEPT_S)


def _request(
    service: str, verb: str, message: type[Message], reply: type[Message], *callers: str, query: bool = False
) -> Channel:
    return Channel("rpc", service, verb, message, callers, reply, query=query)


def _pod_request(role: str, verb: str, message: type[Message], reply: type[Message], *callers: str) -> Channel:
    return Channel("pod", role, verb, message, callers, reply)


CHANNELS: tuple[Channel, ...] = (
    _event(
        "gateway",
        "job-submitted",
        JobSubmitted,
        "profiler",
        "planner",
        cluster("planner"),
        cluster("arbiter"),
        "dispatcher",
        "checkpoints",
        "oom",
        "actuator",
    ),
    _event(
        "gateway",
        "job-cancelled",
        gateway.JobCancelled,
        "profiler",
        "fitter",
        "planner",
        cluster("arbiter"),
        "dispatcher",
        "checkpoints",
        "oom",
        "actuator",
        "decider",
    ),
    _event("gateway", "plan-requested", gateway.PlanRequested, cluster("arbiter")),
    _event("gateway", "data-workers-requested", gateway.DataWorkersRequested, cluster("arbiter"), "planner"),
    _event("gateway", "data-arrived", gateway.DataArrived, "dispatcher"),
    _event(
        "profiler",
        "profile-measured",
        profiler.ProfileMeasured,
        "fitter",
        "planner",
        "oom",
        kept_s=PROFILES_KEPT_S,
    ),
    _event("profiler", "straggler-detected", profiler.StragglerDetected, "dispatcher"),
    _event("profiler", "straggler-cleared", profiler.StragglerCleared, "dispatcher"),
    _event("profiler", "hot-ps-detected", profiler.HotPsDetected, "actuator"),
    _event("profiler", "hot-ps-cleared", profiler.HotPsCleared, "actuator"),
    _event("fitter", "model-fitted", fitter.ModelFitted, "planner"),
    _event("planner", "history-recorded", planner.HistoryRecorded, cluster("planner")),
    _event("planner", "history-matched", planner.HistoryMatched, "planner", "fitter"),
    _event("planner", "plan-proposed", planner.PlanProposed, cluster("arbiter")),
    _event("planner", "candidates-computed", planner.CandidatesComputed, cluster("arbiter")),
    _event("planner", "data-workers-proposed", planner.DataWorkersProposed, cluster("arbiter")),
    _event("arbiter", "plan-decided", arbiter.PlanDecided, "planner", "actuator", "profiler", "oom", "decider"),
    _event("arbiter", "plan-refused", arbiter.PlanRefused, "planner"),
    _event("arbiter", "replacement-decided", arbiter.ReplacementDecided, "actuator"),
    _event("arbiter", "data-workers-decided", arbiter.DataWorkersDecided, "planner", "actuator"),
    _event("actuator", "pod-started", actuator.PodStarted, "profiler", "planner", cluster("arbiter")),
    _event("actuator", "pod-pending", actuator.PodPending, cluster("arbiter")),
    _event("actuator", "pod-exited", actuator.PodExited, "profiler", cluster("arbiter"), "dispatcher", "oom"),
    _event("actuator", "pod-resized", actuator.PodResized, "profiler", "oom", "ps"),
    _event("actuator", "plan-applied", actuator.PlanApplied, "profiler", "planner", cluster("arbiter"), "oom"),
    _event("actuator", "servers-changed", actuator.ServersChanged, "checkpoints", "worker", "ps"),
    _event("actuator", "data-workers-changed", actuator.DataWorkersChanged, "worker"),
    _event("actuator", "group-changed", actuator.GroupChanged, "worker"),
    _event("actuator", "parameters-lost", actuator.ParametersLost, "dispatcher", "checkpoints"),
    _event("actuator", "migration-started", actuator.MigrationStarted, "profiler", "checkpoints"),
    _event("actuator", "migration-finished", actuator.MigrationFinished, "profiler", "checkpoints"),
    _event("actuator", "replacement-asked", actuator.ReplacementAsked, cluster("arbiter")),
    _event("actuator", "replacement-ended", actuator.ReplacementEnded, cluster("arbiter")),
    _event("actuator", "job-finished", actuator.JobFinished, cluster("arbiter"), "checkpoints"),
    _event(
        "actuator",
        "job-failed",
        actuator.JobFailed,
        "profiler",
        "fitter",
        "planner",
        cluster("arbiter"),
        "dispatcher",
        "checkpoints",
        "oom",
    ),
    _event("dispatcher", "shard-leased", dispatcher.ShardLeased, kept_s=SHARD_FACTS_KEPT_S),
    _event("dispatcher", "shard-completed", dispatcher.ShardCompleted, kept_s=SHARD_FACTS_KEPT_S),
    _event("dispatcher", "shard-requeued", dispatcher.ShardRequeued, kept_s=SHARD_FACTS_KEPT_S),
    _event("dispatcher", "shard-abandoned", dispatcher.ShardAbandoned, "actuator"),
    _event(
        "dispatcher",
        "job-progressed",
        dispatcher.JobProgressed,
        "profiler",
        "planner",
        cluster("arbiter"),
        "oom",
        "actuator",
    ),
    _event(
        "dispatcher",
        "job-completed",
        dispatcher.JobCompleted,
        "profiler",
        "fitter",
        "planner",
        cluster("arbiter"),
        "checkpoints",
        "oom",
        "actuator",
    ),
    _event("dispatcher", "evaluation-measured", dispatcher.EvaluationMeasured, "checkpoints", "actuator"),
    _event("dispatcher", "recomputation-decided", dispatcher.RecomputationDecided, "checkpoints", "actuator"),
    _event("checkpoints", "checkpoint-saved", checkpoints.CheckpointSaved),
    _event("checkpoints", "checkpoint-flushed", checkpoints.CheckpointFlushed, "dispatcher", "actuator"),
    _event("checkpoints", "checkpoint-restored", checkpoints.CheckpointRestored, "dispatcher", "actuator"),
    _event("checkpoints", "columns-restored", checkpoints.ColumnsRestored, "dispatcher"),
    _event("checkpoints", "checkpoint-failed", checkpoints.CheckpointFailed, "actuator"),
    _event("decider", "object-adopted", ObjectAdopted, "planner", cluster("arbiter")),
    _event("decider", "size-decided", decider.SizeDecided),
    _event("decider", "size-settled", decider.SizeSettled, "planner", cluster("arbiter")),
    _event("decider", "object-released", decider.ObjectReleased, "planner", cluster("arbiter")),
    _event("oom", "oom-forecast", oom.OomForecast, cluster("arbiter")),
    _telemetry("worker", pods.WorkerReported, "profiler"),
    _telemetry("ps", pods.PsReported, "profiler"),
    _telemetry("data", pods.DataWorkerReported, "profiler"),
    _request(
        "profiler",
        "get-report-interval",
        profiler.GetReportInterval,
        profiler.GetReportIntervalReply,
        "worker",
        "ps",
        "data",
        query=True,
    ),
    _request("planner", "preview-plan", PreviewPlan, planner.PreviewPlanReply, "gateway", query=True),
    _request("planner", "predict-plan", planner.PredictPlan, planner.PredictPlanReply, "gateway", query=True),
    _request("arbiter", "get-cluster", arbiter.GetCluster, arbiter.GetClusterReply, "gateway", query=True),
    _request("dispatcher", "next-shard", dispatcher.NextShard, dispatcher.NextShardReply, "worker"),
    _request("dispatcher", "shard-heartbeat", dispatcher.ShardHeartbeat, dispatcher.ShardHeartbeatReply, "worker"),
    _request("dispatcher", "release-shard", dispatcher.ReleaseShard, dispatcher.ReleaseShardReply, "worker"),
    _request("dispatcher", "mark-ledger", dispatcher.MarkLedger, dispatcher.MarkLedgerReply, "checkpoints", "worker"),
    _request("dispatcher", "return-ledger", dispatcher.ReturnLedger, dispatcher.ReturnLedgerReply, "worker"),
    _request("dispatcher", "audit-ledger", dispatcher.AuditLedger, dispatcher.AuditLedgerReply, "gateway", "cli"),
    _request(
        "actuator",
        "get-servers",
        actuator.GetServers,
        actuator.GetServersReply,
        "worker",
        "ps",
        "cli",
        "gateway",
        "actuator",
    ),
    _request(
        "actuator",
        "renew-credentials",
        actuator.RenewCredentials,
        actuator.RenewCredentialsReply,
        "worker",
        "ps",
        query=True,
    ),
    _request("actuator", "get-pod-log", actuator.GetPodLog, actuator.GetPodLogReply, "gateway", query=True),
    _request(
        "checkpoints", "save-checkpoint", checkpoints.SaveCheckpoint, checkpoints.SaveCheckpointReply, "gateway", "cli"
    ),
    _pod_request("pod", "ping", pods.PodPing, pods.PodPingReply, "actuator"),
    _pod_request("ps", "take-buckets", pods.TakeBuckets, pods.TakeBucketsReply, "actuator"),
    _pod_request("ps", "get-move-status", pods.GetMoveStatus, pods.GetMoveStatusReply, "actuator"),
    _pod_request("ps", "get-ownership", pods.GetOwnership, pods.GetOwnershipReply, "actuator", "checkpoints"),
    _pod_request("ps", "claim-buckets", pods.ClaimBuckets, pods.ClaimBucketsReply, "actuator"),
    _pod_request("ps", "empty-server", pods.EmptyServer, pods.EmptyServerReply, "actuator"),
    _pod_request("ps", "export-state", pods.ExportState, pods.ExportStateReply, "checkpoints"),
    _pod_request("ps", "get-export-status", pods.GetExportStatus, pods.GetExportStatusReply, "checkpoints"),
    _pod_request("ps", "import-state", pods.ImportState, pods.ImportStateReply, "checkpoints"),
    _pod_request("worker", "train-under", pods.TrainUnder, pods.TrainUnderReply, "actuator"),
    _pod_request("worker", "evaluate-model", pods.EvaluateModel, pods.EvaluateModelReply, "actuator"),
    _pod_request("ps", "get-books", pods.GetBooks, pods.GetBooksReply, "actuator", "gateway", "cli"),
)

_BY_MESSAGE = {channel.message: channel for channel in CHANNELS}
_FIXED = {channel.message: channel.pattern.removesuffix("*") for channel in CHANNELS if channel.kind in ("evt", "rpc")}
"""Subjects without their last token, for channels whose only parameter is the job."""
_BY_ROUTE = {
    (channel.kind, "" if channel.kind == "pod" else channel.service, channel.name): channel for channel in CHANNELS
}


def inputs_of(service: str) -> tuple[Input, ...]:
    """Return the stored messages that a service consumes, in the order of the registry."""
    stored = [channel for channel in CHANNELS if channel.kind in ("evt", "tel")]
    readers = [(c.message, ChannelReader(one) if isinstance(one, str) else one) for c in stored for one in c.consumers]
    return tuple(Input(message, reader.scope) for message, reader in readers if reader.service == service)


def requests_of(service: str, *, query: bool = False) -> tuple[type[Message], ...]:
    """Return the requests that a service answers: journalled ones, or with ``query`` its queries."""
    return tuple(c.message for c in CHANNELS if (c.kind, c.service, c.query) == ("rpc", service, query))


def channel_of(message: Message | type[Message]) -> Channel:
    """Return the channel of a message. Raises KeyError for a reply: replies have no subject of their own."""
    return _BY_MESSAGE[message if isinstance(message, type) else type(message)]


def subject_of(message: Message, pod: str | None = None) -> str:
    """Return the subject of ``message``. ``pod`` is needed for requests to pods."""
    if (fixed := _FIXED.get(type(message))) is not None:
        return fixed + message.job
    channel = channel_of(message)
    if channel.kind == "tel":
        return f"tel.v1.{channel.service}.{getattr(message, 'pod')}.{message.job}"  # noqa: B009
    if pod is None or not re.fullmatch(POD_PATTERN, pod):
        raise WireError("pod", pod, "a request to a pod needs the pod's name, such as ps-0")
    return f"pod.v1.{channel.name}.{pod}.{message.job}"


def channel_at(subject: str) -> Channel:
    """Return the channel of a subject, with or without the leading partition of a stored subject.

    Raises:
        WireError: no channel has this subject.
    """
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
    """Return the message on ``subject``.

    Raises:
        WireError: with field, value and remedy; no other exception leaves this function.
    """
    return parse_on(channel_at(subject), subject, data)


def parse_on(channel: Channel, subject: str, data: bytes) -> Message:
    """Return the message on ``subject`` of a known channel; see ``parse``."""
    message = decode(channel.message, data)
    before, _, job = subject.rpartition(".")
    if message.job != job:
        raise WireError("job", message.job, f"the job of the subject, {job}")
    if channel.kind == "tel":
        pod, of_subject = getattr(message, "pod", ""), before.rpartition(".")[2]
        if pod != of_subject or not pod.startswith(f"{channel.service}-"):
            raise WireError("pod", pod, f"the pod of the subject, {of_subject}, of the role {channel.service}")
    return message


def partition_of(key: str) -> int:
    """Return the partition of a key: FNV-1a, 32 bits, modulo PARTITIONS, as the server's ``partition(16, …)``."""
    value = 2166136261
    for byte in key.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value % PARTITIONS

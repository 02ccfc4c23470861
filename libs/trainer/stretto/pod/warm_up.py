"""Readers of messages, made before a pod imports the framework of its model.

Making a reader and importing a framework both parse Python source, and the parser of Python 3.11 counts its depth for
all threads together: it fails now and then if two threads parse (gh-106905).
"""

from __future__ import annotations

from stretto_messages.actuator import DataWorkersChanged, GetServers, GetServersReply, GroupChanged, ServersChanged
from stretto_messages.base import Record
from stretto_messages.dispatcher import (
    NextShard,
    NextShardReply,
    ReleaseShard,
    ReleaseShardReply,
    ShardHeartbeat,
    ShardHeartbeatReply,
)
from stretto_messages.pods import (
    EvaluateModel,
    EvaluateModelReply,
    PodPing,
    PodPingReply,
    TrainUnder,
    TrainUnderReply,
    WorkerReported,
)
from stretto_wire.codec import adapter_of

_OF_A_WORKER: tuple[type[Record], ...] = (
    PodPing, PodPingReply, TrainUnder, TrainUnderReply, EvaluateModel, EvaluateModelReply, ServersChanged, GetServers,
    GetServersReply, DataWorkersChanged, GroupChanged, NextShard, NextShardReply, ReleaseShard, ReleaseShardReply,
    ShardHeartbeat, ShardHeartbeatReply, WorkerReported,
)  # fmt: skip
"""The messages that a worker sends, or is sent, while its framework may still be importing."""


def make_readers() -> None:
    """Make the readers of a worker's messages, which are kept for the life of the process."""
    for each in _OF_A_WORKER:
        adapter_of(each)

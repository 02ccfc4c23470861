"""Messages to events of the core, facts of the core to messages; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import stretto_wire as wire
from pydantic_core import to_json
from stretto_core.checkpoints import facts as core
from stretto_messages.actuator import JobFailed, JobFinished, MigrationFinished, MigrationStarted, ServersChanged
from stretto_messages.base import Message
from stretto_messages.checkpoints import (
    CheckpointFailed,
    CheckpointFlushed,
    CheckpointRestored,
    CheckpointSaved,
    SaveCheckpoint,
    SaveCheckpointReply,
)
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.gateway import JobCancelled
from stretto_wire.codec import decode

from . import observations as seen


def to_event(message: Any, store: str) -> Any:
    """The core event of ``message``; None: none of its business. ``store``: URL of the installation's own store."""
    if isinstance(message, wire.JobSubmitted):
        return _submitted(message, store)
    translate = _EVENTS.get(type(message))
    return translate(message) if translate else None


def to_message(job: str, fact: Any) -> Any:
    """The wire message of a core fact or reply."""
    return decode(_FACTS[type(fact)], to_json({"job": job, **asdict(fact)}))


def _submitted(message: wire.JobSubmitted, store: str) -> core.JobSubmitted:
    policy = message.spec.checkpoint
    return core.JobSubmitted(
        job=message.job,
        folder=f"{(policy.url or store).rstrip('/')}/{message.job}",
        every_s=policy.every_s,
        keep=policy.keep,
        restore_from=policy.restore_from,
        final=policy.every_s is not None or policy.url is not None,
    )


def _fields(message: Message) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in fields(message) if field.name != "job"}


_EVENTS: dict[type, Callable[[Any], Any]] = {
    ServersChanged: lambda m: core.ServersChanged(m.version, tuple(s.index for s in m.servers if not s.leaving)),
    MigrationStarted: lambda m: core.MigrationStarted(),
    MigrationFinished: lambda m: core.MigrationFinished(),
    JobCompleted: lambda m: core.JobCompleted(),
    JobFinished: lambda m: core.JobEnded(finished=True),
    JobFailed: lambda m: core.JobEnded(),
    JobCancelled: lambda m: core.JobEnded(),
    SaveCheckpoint: lambda m: core.SaveAsked(),
    seen.ImagesTaken: lambda m: core.Saved(**_fields(m)),
    seen.ImagesStored: lambda m: core.Stored(**_fields(m)),
    seen.CheckpointBroken: lambda m: core.Broken(**_fields(m)),
    seen.ParametersLoaded: lambda m: core.Loaded(m.id, core.Checkpoint(**asdict(m.checkpoint)), m.ledger, m.servers),
}

_FACTS: dict[type, type[Message]] = {
    core.CheckpointSaved: CheckpointSaved,
    core.CheckpointFlushed: CheckpointFlushed,
    core.CheckpointRestored: CheckpointRestored,
    core.CheckpointFailed: CheckpointFailed,
    core.SaveAnswered: SaveCheckpointReply,
}

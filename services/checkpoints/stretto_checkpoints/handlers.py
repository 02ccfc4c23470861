"""Messages to events of the core, facts of the core to messages; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import stretto_wire as wire
from stretto_core.checkpoints import facts as core

from . import observations as seen


def to_event(message: Any, store: str) -> Any:
    """The core event of ``message``; None: none of its business. ``store``: URL of the installation's own store."""
    if isinstance(message, wire.JobSubmitted):
        return _submitted(message, store)
    translate = _EVENTS.get(type(message))
    return translate(message) if translate else None


def to_message(job: str, fact: Any) -> Any:
    """The wire message of a core fact or reply."""
    return _FACTS[type(fact)](job=job, **asdict(fact))


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


def _fields(message: wire.Message) -> dict[str, Any]:
    return message.model_dump(exclude={"job"})


_EVENTS: dict[type, Callable[[Any], Any]] = {
    wire.ServersChanged: lambda m: core.ServersChanged(m.version, tuple(s.index for s in m.servers if not s.leaving)),
    wire.MigrationStarted: lambda m: core.MigrationStarted(),
    wire.MigrationFinished: lambda m: core.MigrationFinished(),
    wire.JobCompleted: lambda m: core.JobCompleted(),
    wire.JobFinished: lambda m: core.JobEnded(finished=True),
    wire.JobFailed: lambda m: core.JobEnded(),
    wire.JobCancelled: lambda m: core.JobEnded(),
    wire.SaveCheckpoint: lambda m: core.SaveAsked(),
    seen.ImagesTaken: lambda m: core.Saved(**_fields(m)),
    seen.ImagesStored: lambda m: core.Stored(**_fields(m)),
    seen.CheckpointBroken: lambda m: core.Broken(**_fields(m)),
    seen.ParametersLoaded: lambda m: core.Loaded(
        m.id, core.Checkpoint(**m.checkpoint.model_dump()), m.ledger, m.servers
    ),
}

_FACTS: dict[type, type[wire.Message]] = {
    core.CheckpointSaved: wire.CheckpointSaved,
    core.CheckpointFlushed: wire.CheckpointFlushed,
    core.CheckpointRestored: wire.CheckpointRestored,
    core.CheckpointFailed: wire.CheckpointFailed,
    core.SaveAnswered: wire.SaveCheckpointReply,
}

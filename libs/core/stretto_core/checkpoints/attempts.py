"""Attempts at a checkpoint: when one may begin, when one is due, how it begins, how it is given up or adopted."""

from __future__ import annotations

from dataclasses import replace

from stretto_messages.base import Message
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointSaved
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted
from stretto_messages.values import CheckpointRef

from stretto_core.checkpoints.chains import LINKS_MAX, base_for_next, note
from stretto_core.checkpoints.names import FINAL, number_of
from stretto_core.checkpoints.observations import ImagesSaved, StepFailed
from stretto_core.checkpoints.state import Attempt, CheckpointState

FIRST_AGAIN_S = 30.0
"""Longest time between attempts until the first checkpoint is complete."""
FINAL_TRIES = 8
"""Attempts at the checkpoint after the last shard; the pauses between them are 2, 4, 8, …, 128 s, together 254 s."""
EXPIRED_KEPT = 4 * LINKS_MAX
"""Manifests that are remembered for removal while the job lives."""


def possible(state: CheckpointState) -> bool:
    """Return True if a checkpoint can begin now."""
    quiet = not (state.migrating or state.lost or state.ended)
    returning = state.restore is not None or state.columns is not None
    return quiet and bool(state.servers) and state.attempt is None and not returning


def trained(state: CheckpointState, event: JobCompleted | EvaluationMeasured, now: float) -> None:
    """Make the last checkpoint due, or one of the model that is the best one so far.

    While parameters are lost, a completion will be undone with their return.
    """
    if isinstance(event, EvaluationMeasured):
        state.best_due = state.best_due or event.best
        state.requested = state.requested or event.best
    elif not state.lost and state.columns is None:
        state.completed = True
    begin_if_due(state, now)


def begin_if_due(state: CheckpointState, now: float) -> None:
    """Begin a checkpoint if one is possible and due: the last one, a requested one or a periodic one."""
    if not possible(state):
        return
    final = state.completed and state.final_due and now >= state.final_not_before_s
    if final or state.requested or (_periodic_due(state, now) and not state.completed):
        begin(state, now)


def begin(state: CheckpointState, now: float) -> str:
    """Begin a checkpoint and return its name."""
    final = state.completed and state.final_due
    name = _next_name(state, final)
    state.next_number += 1
    state.last_began_at_s = now
    state.requested = False
    if final:
        state.final_due = False
    base = base_for_next(state, alone=final or state.best_due)
    state.attempt = Attempt(name, url_of(state, name), list(state.servers), now, final, base, best=state.best_due)
    state.best_due = False
    return name


def _next_name(state: CheckpointState, final: bool) -> str:
    return f"{state.job}-{state.next_number:06d}{FINAL if final else ''}"


def url_of(state: CheckpointState, name: str) -> str:
    """Return the URL of a checkpoint's manifest."""
    return f"{state.folder}/{name}/manifest.json"


def complete(state: CheckpointState, checkpoint: CheckpointRef, bases: list[str]) -> None:
    """Note a complete checkpoint, and mark the folders of chains that are kept no longer."""
    state.given_up, state.renamed = [], False
    for name in note(state, checkpoint, bases):
        expire(state, url_of(state, name))


def drop(state: CheckpointState) -> Attempt | None:
    """Give up the attempt and return it; the files that it has written may go."""
    attempt = state.attempt
    if attempt is not None:
        expire(state, attempt.url)
        if not state.ended:  # else nothing comes after it
            state.given_up = [*state.given_up[-EXPIRED_KEPT + 1 :], attempt.url]
        state.attempt = None
        state.best_due = state.best_due or attempt.best
    return attempt


def undo_completion(state: CheckpointState) -> Attempt | None:
    """Give up the attempt and return it: parameters were lost, so a completed job has its last part trained again.

    That part has its last checkpoint then. The model of the best evaluation is gone, unless a checkpoint has it.
    """
    state.completed = False
    state.final_due = state.final
    state.final_failures = 0
    state.final_failure = ""
    state.final_not_before_s = 0.0
    attempt = drop(state)
    state.best_due = False
    return attempt


def saved(state: CheckpointState, attempt: Attempt, found: ImagesSaved) -> CheckpointSaved:
    """Return the message that all images of a checkpoint are in memory."""
    return CheckpointSaved(
        job=state.job,
        checkpoint=attempt.reference,
        pause_s=found.pause_s,
        took_s=found.took_s,
        memory_bytes=found.memory_bytes,
    )


def flushed(state: CheckpointState, attempt: Attempt, took_s: float) -> CheckpointFlushed:
    """Return the message that a checkpoint is complete, with the bytes of all that are kept now."""
    stored_bytes = sum(kept.size_bytes for kept in state.complete)
    return CheckpointFlushed(
        job=state.job, checkpoint=attempt.reference, took_s=took_s, best=attempt.best, stored_bytes=stored_bytes
    )


def not_complete(state: CheckpointState, attempt: Attempt, event: StepFailed, now: float) -> list[Message]:
    """Give an attempt up, or begin it again at once where the store has its name; a second time it waits."""
    state.next_number = max(state.next_number, event.beyond + 1)
    if not event.beyond or state.renamed:
        return [attempt_failed(state, attempt, event.reason, now)]
    state.attempt, state.renamed = None, True  # the files under its name stay
    state.final_due = state.final_due or attempt.final
    state.best_due = state.best_due or attempt.best
    state.requested = True
    return [] if attempt.final else [failed(state, attempt.id, event.reason)]


def failed(state: CheckpointState, name: str, reason: str) -> CheckpointFailed:
    """Return the message that a checkpoint, or a return to one, failed."""
    return CheckpointFailed(job=state.job, id=name, reason=reason)


def attempt_failed(state: CheckpointState, attempt: Attempt, reason: str, now: float) -> CheckpointFailed:
    """Give up an attempt and return its failure; a final one is due again after a pause, unless it had enough tries."""
    drop(state)
    told = failed(state, attempt.id, reason)
    if not attempt.final:
        return told
    state.final_failures += 1
    state.final_failure = reason
    if state.final_failures >= FINAL_TRIES or state.ended:
        return told
    state.final_due = True
    state.final_not_before_s = now + 2.0**state.final_failures
    return replace(told, next_try_at_s=state.final_not_before_s)


def final_given_up(state: CheckpointState) -> list[Message]:
    """Return the failure of a final checkpoint that a finished job no longer waits for.

    There is none if its images were taken: they can still go to the store after the pods have gone.
    """
    attempt = state.attempt
    taking = attempt if attempt is not None and attempt.final and attempt.stage == "taking" else None
    if not state.completed or not (state.final_due or taking):
        return []
    name = taking.id if taking else _next_name(state, final=True)
    return [failed(state, name, state.final_failure or "the job ended before it was taken")]


def adopt(state: CheckpointState, checkpoint: CheckpointRef, bases: list[str]) -> None:
    """Note a checkpoint of this job that the state does not know: the installation was restored from a backup.

    Later names then go on after it, because the store holds files under those in between.
    """
    own = checkpoint.url.startswith(f"{state.folder}/")
    if own and all(known.url != checkpoint.url for known in state.complete):
        kept = {checkpoint.url, *(url_of(state, name) for name in bases)}
        state.expired = [url for url in state.expired if url not in kept]
        complete(state, checkpoint, bases)
        state.next_number = max(state.next_number, number_of(checkpoint.id) + 1)


def expire(state: CheckpointState, url: str) -> None:
    """Mark the folder of a manifest for removal."""
    state.expired = [*state.expired[-EXPIRED_KEPT + 1 :], url]


def _periodic_due(state: CheckpointState, now: float) -> bool:
    if state.every_s is None:
        return False
    started = state.complete or state.restore_from is not None
    return now - state.last_began_at_s >= (state.every_s if started else min(state.every_s, FIRST_AGAIN_S))

"""Lost columns come back: from the newest complete checkpoint, on the servers that survive, while these go on.

Steps: 1. the actuator publishes ParametersLost; 2. the service imports what nobody owns; 3. ColumnsRestored asks the
dispatcher to hand out what those columns lack; 4. RecomputationDecided ends it. No checkpoint begins in between: its
ledger would count as done what restored columns lack. Only the newest checkpoint will do, since older ones may need
progress records that were deleted after it; before the job's own first one, that is the one which it started from.
Whatever fails, the actuator goes back with everything instead.
"""

from __future__ import annotations

from stretto_messages.actuator import ParametersLost
from stretto_messages.base import Message
from stretto_messages.checkpoints import ColumnsRestored
from stretto_messages.dispatcher import RecomputationDecided

from stretto_core.checkpoints import attempts
from stretto_core.checkpoints.names import COLUMNS
from stretto_core.checkpoints.observations import ColumnsImported, StepFailed
from stretto_core.checkpoints.state import CheckpointState, ColumnRestore

TRIES = 3
"""Attempts to bring the columns back, unless the checkpoint is damaged."""
Facts = list[Message]


def lost(state: CheckpointState, event: ParametersLost, now: float) -> Facts:
    """Begin to bring the columns back; a checkpoint on its way is taken again after it."""
    staying = [server.index for server in event.servers if not server.leaving]
    servers = [server.index for server in event.servers]
    state.servers_version = event.version
    state.servers = staying
    attempt = attempts.undo_completion(state)
    facts: Facts = []
    if attempt is not None:
        state.requested = True
        if not attempt.final:
            facts = [attempts.failed(state, attempt.id, "a parameter server was lost while it was taken")]
    return facts + _begin(state, event.version, servers, staying or servers, now, failures=0)


def imported(state: CheckpointState, event: ColumnsImported, now: float) -> Facts:
    """Publish that every column has an owner again."""
    columns = state.columns
    assert columns is not None
    columns.stage = "deciding"
    restored = ColumnsRestored(
        job=state.job,
        loss=columns.loss,
        checkpoint=columns.checkpoint,
        columns=event.columns,
        size_bytes=event.size_bytes,
        took_s=max(now - columns.began_at_s, 0.0),
    )
    return [restored]


def failed(state: CheckpointState, event: StepFailed) -> Facts:
    """Try again under a higher number, since a late request of this attempt must not import anything then."""
    columns = state.columns
    assert columns is not None
    if not event.damaged and columns.failures + 1 < TRIES:
        return _begin(state, columns.loss, columns.servers, columns.takers, columns.began_at_s, columns.failures + 1)
    columns.stage = "given-up"
    return [attempts.failed(state, event.id, event.reason)]


def decided(state: CheckpointState, event: RecomputationDecided, now: float) -> None:
    """Go on with checkpoints once the ledger hands out what the restored columns lack."""
    columns = state.columns
    if columns is None or columns.loss != event.loss or columns.stage != "deciding":
        return
    if not event.granted:
        columns.stage = "given-up"
        return
    state.columns = None
    attempts.begin_if_due(state, now)


def _begin(
    state: CheckpointState, loss: int, servers: list[int], takers: list[int], began_at_s: float, failures: int
) -> Facts:
    name = f"{state.job}{COLUMNS}{state.next_number}"
    newest = state.complete[-1] if state.complete else state.restored
    if state.lost or newest is None:
        state.columns = None
        return [attempts.failed(state, name, "the job has no complete checkpoint to take columns from")]
    state.next_number += 1
    state.columns = ColumnRestore(name, loss, newest, servers, takers, began_at_s, failures, state.lineage)
    return []

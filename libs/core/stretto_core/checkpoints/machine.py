"""Decides when a job's checkpoints are taken, which one stands, and when parameters go back to it.

A checkpoint has two halves of one instant: the ledger's mark, taken first, and every parameter server's image. It is
*saved* once all images are in memory (training has gone on already), and *flushed* once all are in the store and the
manifest names them: then it is complete. Whatever fails, the last complete one stands (DLRover-RM section 5.2, flash
checkpoint).

The first is taken as soon as there are servers. It holds hardly anything, and a job that loses a server before the
second one goes back to the beginning in the same way as to any other.
"""

from __future__ import annotations

from typing import Any

from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    MigrationFinished,
    MigrationStarted,
    ParametersLost,
    ServersChanged,
)
from stretto_messages.base import Message
from stretto_messages.checkpoints import CheckpointRestored, SaveCheckpoint, SaveCheckpointReply
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted, RecomputationDecided
from stretto_messages.gateway import JobCancelled

from stretto_core.checkpoints import attempts, chains, columns
from stretto_core.checkpoints.names import RESTORE, is_final, restore_number
from stretto_core.checkpoints.observations import (
    ColumnsImported,
    ImagesFlushed,
    ImagesSaved,
    Observation,
    ParametersRestored,
    StepFailed,
)
from stretto_core.checkpoints.state import Attempt, CheckpointState, JobOpened, Restore
from stretto_core.machine import Action, Emit, Reply, Tick, assert_no_new_fault

RESTORE_TRIES = 3
"""Attempts to read one checkpoint, unless it is damaged."""

JobEnded = JobFinished | JobFailed | JobCancelled
CheckpointsEvent = (
    JobOpened
    | JobCompleted
    | JobEnded
    | ServersChanged
    | ParametersLost
    | RecomputationDecided
    | EvaluationMeasured
    | MigrationStarted
    | MigrationFinished
    | SaveCheckpoint
    | Observation
    | Tick
)
Facts = list[Message]


class CheckpointMachine:
    """Checkpoints of one job."""

    version = 4

    def __init__(self, state: CheckpointState | None = None) -> None:
        self.state = state if state is not None else CheckpointState()

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of version 1, which told no bytes of all that is stored, or 2, which hid tries.

        Before 4, the names of what the store has were taken again, and a later one that could not be read cost another.
        """
        return state

    @property
    def ticking(self) -> bool:
        """True while the passing of time can make a checkpoint due."""
        state = self.state
        return not state.ended and (state.every_s is not None or (state.completed and state.final_due))

    @property
    def ended(self) -> bool:
        """True once the job is over."""
        return self.state.ended

    def handle(self, event: CheckpointsEvent, now: float) -> list[Action]:
        """Advance by one event."""
        facts, before = list[Message](), self.state.faults()
        match event:
            case JobOpened():
                self._open(event)
            case JobCompleted() | EvaluationMeasured():
                attempts.trained(self.state, event, now)
            case JobFinished() | JobFailed() | JobCancelled():
                facts = self._end(finished=isinstance(event, JobFinished))
            case ServersChanged() if self._is_new(event):
                facts = self._servers_changed(event, now)
            case ParametersLost() if self._is_new(event):
                facts = columns.lost(self.state, event, now)
            case RecomputationDecided():
                columns.decided(self.state, event, now)
            case MigrationStarted():
                facts = self._migration_started()
            case MigrationFinished():
                self.state.migrating = False
                attempts.begin_if_due(self.state, now)
            case SaveCheckpoint():
                return [Reply(self._answer(event, now))]
            case ImagesSaved() | ImagesFlushed() | StepFailed() | ParametersRestored() | ColumnsImported():
                facts = self._observed(event, now)
            case Tick():
                attempts.begin_if_due(self.state, now)
            case _:
                return []
        assert_no_new_fault(before, self.state.faults())
        return [Emit(fact) for fact in facts]

    def _observed(self, event: Observation, now: float) -> Facts:
        """Advance by a step that the service has taken; one that is no longer wanted changes nothing."""
        attempt = self.state.attempt
        restore = self.state.restore
        loading = self.state.columns
        match event:
            case ImagesSaved(id=name) if attempt is not None and attempt.id == name and attempt.stage == "taking":
                return self._saved(event, attempt)
            case ImagesFlushed(id=name) if attempt is not None and attempt.id == name and attempt.stage == "storing":
                return self._flushed(event, attempt, now)
            case StepFailed(id=name) if attempt is not None and attempt.id == name:
                return self._attempt_failed(event, attempt, now)
            case StepFailed(id=name) if restore is not None and restore.id == name:
                return self._restore_failed(event, restore)
            case ParametersRestored(id=name) if restore is not None and restore.id == name:
                return self._restored(event, now)
            case ColumnsImported(id=name) if loading is not None and (loading.id, loading.stage) == (name, "loading"):
                return columns.imported(self.state, event, now)
            case StepFailed(id=name) if loading is not None and (loading.id, loading.stage) == (name, "loading"):
                return columns.failed(self.state, event)
            case _:
                return []

    # the job ---------------------------------------------------------------------------------------------------

    def _open(self, event: JobOpened) -> None:
        state = self.state
        if state.job:
            return
        state.job = event.job
        state.folder = event.folder.rstrip("/")
        state.every_s = event.every_s
        state.keep = event.keep
        state.final = event.final
        state.final_due = event.final
        state.restore_from = event.restore_from
        state.lost = event.restore_from is not None

    def _end(self, finished: bool) -> Facts:
        """Keep the result and the best checkpoint of a finished job; any other one may be taken up from what it has."""
        state = self.state
        facts = attempts.final_given_up(state) if finished and not state.ended else []
        state.ended = True
        state.restore = None
        state.columns = None
        state.requested = False
        if state.attempt is not None and state.attempt.stage == "taking":
            attempts.drop(self.state)
        state.given_up = [] if finished else state.given_up
        if finished and state.complete and is_final(state.complete[-1].id):
            kept = {state.complete[-1].id, state.best}
            state.expired += [earlier.url for earlier in reversed(state.complete) if earlier.id not in kept]
            state.complete = [reference for reference in state.complete if reference.id in kept]
            state.bases = {}
        return facts

    # servers ---------------------------------------------------------------------------------------------------

    def _is_new(self, event: ServersChanged | ParametersLost) -> bool:
        state = self.state
        return bool(state.job) and not state.ended and event.version > state.servers_version

    def _servers_changed(self, event: ServersChanged, now: float) -> Facts:
        state = self.state
        servers = [server.index for server in event.servers if not server.leaving]
        state.servers_version = event.version
        state.servers = servers
        if not servers:
            return self._parameters_lost()
        if state.lost:
            return self._begin_restore()
        facts: Facts = []
        if state.attempt is not None and not set(state.attempt.servers) <= set(servers):  # one of them answers no more
            facts = self._take_again("a parameter server left; it is taken again of those that stay")
        attempts.begin_if_due(self.state, now)
        return facts

    def _parameters_lost(self) -> Facts:
        state = self.state
        state.lost = True
        state.migrating = False
        state.restore = None
        state.columns = None
        attempt = attempts.undo_completion(state)
        if attempt is None or attempt.final:
            return []
        return [attempts.failed(state, attempt.id, "a parameter server was lost while it was taken")]

    def _begin_restore(self, failures: int = 0) -> Facts:
        state = self.state
        name = f"{state.job}{RESTORE}{state.next_number}"
        latest = state.complete[-1].url if state.complete else state.restore_from
        if latest is None:
            why = "checkpoint.every_s is null" if state.every_s is None else "none was completed in time"
            reason = (
                f"the parameters of {state.job} are lost and it has no complete checkpoint ({why}); submit it again"
            )
            return [attempts.failed(state, name, reason)]
        state.next_number += 1
        state.restore = Restore(name, latest, list(state.servers), failures)
        return []

    def _migration_started(self) -> Facts:
        self.state.migrating = True
        attempt = self.state.attempt
        if attempt is not None and attempt.stage == "taking":  # images of two moments of the layout do not fit
            return self._take_again("a migration began; it is taken again after it")
        return []

    def _take_again(self, reason: str) -> Facts:
        attempt = attempts.drop(self.state)
        if attempt is None:
            return []
        self.state.requested = True
        if attempt.final:
            self.state.final_due = True
            return []
        return [attempts.failed(self.state, attempt.id, reason)]

    # taking ----------------------------------------------------------------------------------------------------

    def _answer(self, request: SaveCheckpoint, now: float) -> SaveCheckpointReply:
        state = self.state
        if not state.job or state.ended:
            return SaveCheckpointReply(job=request.job, answer="unknown")
        if attempts.possible(state):
            return SaveCheckpointReply(job=request.job, answer="begun", id=attempts.begin(state, now))
        return SaveCheckpointReply(job=request.job, answer="busy", id=state.attempt.id if state.attempt else None)

    # observations ----------------------------------------------------------------------------------------------

    def _saved(self, event: ImagesSaved, attempt: Attempt) -> Facts:
        attempt.stage = "storing"
        attempt.ledger = event.ledger
        attempt.samples = event.samples
        attempt.size_bytes = event.size_bytes
        attempt.base = attempt.base if event.difference else ""
        return [attempts.saved(self.state, attempt, event)]

    def _flushed(self, event: ImagesFlushed, attempt: Attempt, now: float) -> Facts:
        state = self.state
        state.attempt = None
        if attempt.best:
            state.best = attempt.id
        attempts.complete(state, attempt.reference, chains.chain(state, attempt.base) if attempt.base else [])
        attempts.begin_if_due(self.state, now)
        return [attempts.flushed(state, attempt, event.took_s)]

    def _attempt_failed(self, event: StepFailed, attempt: Attempt, now: float) -> Facts:
        told = attempts.not_complete(self.state, attempt, event, now)
        attempts.begin_if_due(self.state, now)
        return told

    def _restore_failed(self, event: StepFailed, restore: Restore) -> Facts:
        """Read the checkpoint again, then fall back to the one before it.

        A server or a store that does not answer says nothing about the checkpoint. Nothing is removed from the store:
        a job that fails can start from it again.
        """
        state = self.state
        state.restore = None
        if not event.damaged and restore.failures + 1 < RESTORE_TRIES:
            return self._begin_restore(restore.failures + 1)
        state.unreadable = [*state.unreadable[-attempts.EXPIRED_KEPT + 1 :], event.url or restore.url]
        if event.url:  # the one that the state knows was not read
            return self._begin_restore()
        if state.complete and state.complete[-1].url == restore.url:
            state.complete.pop()
            if state.complete or state.restore_from:
                return self._begin_restore()
        return [attempts.failed(state, event.id, event.reason)]

    def _restored(self, event: ParametersRestored, now: float) -> Facts:
        state = self.state
        state.restore, state.lost = None, False
        state.lineage, state.restored = restore_number(event.id), event.checkpoint
        state.last_began_at_s = now
        attempts.adopt(state, event.checkpoint, list(event.bases))
        restored = CheckpointRestored(
            job=state.job,
            checkpoint=event.checkpoint,
            ps=len(event.servers),
            ledger=event.ledger,
            request_id=event.id,
        )
        return [restored]

"""When a job's checkpoints are taken, which one stands, and when parameters go back to it.

A checkpoint has two halves of one instant: the ledger's mark, taken first, and every parameter server's image. It is
*saved* once all images are in memory (training has gone on already), and *complete* once all are in the store and the
manifest names them. Whatever fails, the last complete one stands (DLRover-RM section 5.2, flash checkpoint).

The first is taken as soon as there are servers: hardly anything is in it, and whoever loses a server before the
second goes back to the beginning by the same way as to any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from stretto_core.checkpoints.facts import (
    EXPIRED_KEPT,
    FINAL,
    RESTORE,
    Attempt,
    Broken,
    Checkpoint,
    CheckpointFailed,
    CheckpointFlushed,
    CheckpointRestored,
    CheckpointSaved,
    CheckpointState,
    JobCompleted,
    JobEnded,
    JobSubmitted,
    Loaded,
    MigrationFinished,
    MigrationStarted,
    Restore,
    SaveAnswered,
    SaveAsked,
    Saved,
    ServersChanged,
    Stored,
    is_final,
)
from stretto_core.machine import Action, Emit, Reply, Tick

FINAL_TRIES = 3
"""attempts at the checkpoint after the last shard"""
RESTORE_TRIES = 3
"""attempts at reading one checkpoint, unless it is damaged"""
FIRST_AGAIN_S = 30.0
"""until the first complete one is there, it is tried again so soon"""


class CheckpointMachine:
    """See the module."""

    version = 4

    def __init__(self, state: CheckpointState | None = None) -> None:
        self.state = state if state is not None else CheckpointState()
        self._out: list[Action] = []

    @property
    def ticking(self) -> bool:
        """Whether time matters."""
        st = self.state
        return not st.ended and (st.every_s is not None or (st.completed and st.final_due))

    def handle(self, event: Any, now: float) -> list[Action]:
        """Advance by one event."""
        self._out = []
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, now)
        return self._out

    # the job ---------------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, now: float) -> None:
        st = self.state
        if st.job:
            return
        st.job, st.folder = event.job, event.folder.rstrip("/")
        st.every_s, st.keep, st.final, st.final_due = event.every_s, event.keep, event.final, event.final
        st.restore_from, st.lost = event.restore_from, event.restore_from is not None

    def _completed(self, event: JobCompleted, now: float) -> None:
        if not self.state.lost:
            self.state.completed = True
            self._begin_if_due(now)

    def _ended(self, event: JobEnded, now: float) -> None:
        """What a finished job leaves is its result. Any other may be taken up again from what it has."""
        st = self.state
        st.ended, st.restore, st.asked = True, None, False
        if st.attempt is not None and st.attempt.stage == "taking":
            self._drop()
        if event.finished and st.complete and is_final(st.complete[-1].id):
            st.expired += [earlier.url for earlier in st.complete[:-1]]
            st.complete = st.complete[-1:]

    # servers ---------------------------------------------------------------------------------------------------

    def _servers(self, event: ServersChanged, now: float) -> None:
        st = self.state
        if event.version <= st.servers_version or st.ended:
            return
        st.servers_version, st.servers = event.version, list(event.servers)
        if not event.servers:
            st.lost, st.migrating, st.restore, st.completed = True, False, None, False
            attempt = self._drop()
            if attempt is not None and not attempt.final:
                self._tell_failed(attempt, "a parameter server was lost while it was taken")
            # what was completed is trained again, and has its last checkpoint then
            st.final_due, st.final_failures, st.final_not_before_s = st.final, 0, 0.0
        elif st.lost:
            self._begin_restore()
        else:
            if st.attempt is not None and not set(st.attempt.servers) <= set(event.servers):
                self._take_again("a parameter server left; it is taken again of those that stay")  # it answers no more
            self._begin_if_due(now)

    def _begin_restore(self, failures: int = 0) -> None:
        st = self.state
        name = f"{st.job}{RESTORE}{st.next_number}"
        latest = st.complete[-1].url if st.complete else st.restore_from
        if latest is None:
            why = "checkpoint.every_s is null" if st.every_s is None else "none was completed in time"
            reason = f"the parameters of {st.job} are lost and it has no complete checkpoint ({why}); submit it again"
            self._out.append(Emit(CheckpointFailed(name, reason)))
            return
        st.next_number += 1
        st.restore = Restore(name, latest, list(st.servers), failures)

    def _migrates(self, event: MigrationStarted, now: float) -> None:
        st = self.state
        st.migrating = True
        if st.attempt is not None and st.attempt.stage == "taking":  # images of two moments of the layout do not fit
            self._take_again("a migration began; it is taken again after it")

    def _take_again(self, reason: str) -> None:
        attempt = self._drop()
        if attempt is None:
            return
        self.state.asked = True
        if attempt.final:
            self.state.final_due = True
        else:
            self._tell_failed(attempt, reason)

    def _migrated(self, event: MigrationFinished, now: float) -> None:
        self.state.migrating = False
        self._begin_if_due(now)

    # taking ----------------------------------------------------------------------------------------------------

    def _ticked(self, event: Tick, now: float) -> None:
        self._begin_if_due(now)

    def _asked(self, event: SaveAsked, now: float) -> None:
        st = self.state
        if not st.job or st.ended:
            self._out.append(Reply(SaveAnswered("unknown")))
        elif self._possible():
            self._out.append(Reply(SaveAnswered("begun", self._begin(now))))
        else:
            self._out.append(Reply(SaveAnswered("busy", st.attempt.id if st.attempt else None)))

    def _possible(self) -> bool:
        st = self.state
        quiet = not (st.migrating or st.lost or st.ended)
        return quiet and bool(st.servers) and st.attempt is None and st.restore is None

    def _begin_if_due(self, now: float) -> None:
        st = self.state
        if not self._possible():
            return
        final = st.completed and st.final_due and now >= st.final_not_before_s
        if final or st.asked or (self._periodic_due(now) and not st.completed):
            self._begin(now)

    def _periodic_due(self, now: float) -> bool:
        st = self.state
        if st.every_s is None:
            return False
        started = st.complete or st.restore_from is not None
        return now - st.last_began_at_s >= (st.every_s if started else min(st.every_s, FIRST_AGAIN_S))

    def _begin(self, now: float) -> str:
        st = self.state
        final = st.completed and st.final_due
        name = f"{st.job}-{st.next_number:06d}{FINAL if final else ''}"
        st.next_number += 1
        st.last_began_at_s, st.asked = now, False
        if final:
            st.final_due = False
        st.attempt = Attempt(name, f"{st.folder}/{name}/manifest.json", list(st.servers), now, final)
        return name

    def _drop(self) -> Attempt | None:
        """The attempt, which comes to nothing; what it has written may go."""
        st, attempt = self.state, self.state.attempt
        if attempt is not None:
            self._expire(attempt.url)
            st.attempt = None
        return attempt

    def _expire(self, url: str) -> None:
        self.state.expired = [*self.state.expired[-EXPIRED_KEPT + 1 :], url]

    def _tell_failed(self, attempt: Attempt, reason: str) -> None:
        self._out.append(Emit(CheckpointFailed(attempt.id, reason)))

    def _saved(self, event: Saved, now: float) -> None:
        attempt = self.state.attempt
        if attempt is None or attempt.id != event.id or attempt.stage != "taking":
            return
        attempt.stage, attempt.ledger = "storing", event.ledger
        attempt.samples, attempt.size_bytes = event.samples, event.size_bytes
        self._out.append(Emit(CheckpointSaved(_reference(attempt), event.pause_s, event.took_s, event.memory_bytes)))

    def _stored(self, event: Stored, now: float) -> None:
        st = self.state
        attempt = st.attempt
        if attempt is None or attempt.id != event.id or attempt.stage != "storing":
            return
        reference = _reference(attempt)
        st.attempt = None
        st.complete.append(reference)
        self._out.append(Emit(CheckpointFlushed(reference, event.took_s)))
        while len(st.complete) > st.keep:
            self._expire(st.complete.pop(0).url)
        self._begin_if_due(now)

    def _broken(self, event: Broken, now: float) -> None:
        st = self.state
        if st.attempt is not None and st.attempt.id == event.id:
            self._attempt_broke(event, st.attempt, now)
        elif st.restore is not None and st.restore.id == event.id:
            self._restore_broke(event, st.restore)

    def _attempt_broke(self, event: Broken, attempt: Attempt, now: float) -> None:
        """The last checkpoint is tried again before its failure is told: whoever waits for it would wait no more."""
        st = self.state
        self._drop()
        if attempt.final:
            st.final_failures += 1
        if attempt.final and st.final_failures < FINAL_TRIES and not st.ended:
            st.final_due, st.final_not_before_s = True, now + 2.0**st.final_failures
        else:
            self._tell_failed(attempt, event.reason)
        self._begin_if_due(now)

    def _restore_broke(self, event: Broken, restore: Restore) -> None:
        """A server or the store that did not answer says nothing about the checkpoint: it is read again, at first.

        The one before it may be sound. Nothing is removed from the store: a job that fails can start from it again.
        """
        st = self.state
        st.restore = None
        if not event.damaged and restore.failures + 1 < RESTORE_TRIES:
            self._begin_restore(restore.failures + 1)
            return
        if st.complete and st.complete[-1].url == restore.url:
            st.complete.pop()
            if st.complete or st.restore_from:
                self._begin_restore()
                return
        self._out.append(Emit(CheckpointFailed(event.id, event.reason)))

    def _loaded(self, event: Loaded, now: float) -> None:
        st = self.state
        if st.restore is None or st.restore.id != event.id:
            return
        st.restore, st.lost, st.last_began_at_s = None, False, now
        self._out.append(Emit(CheckpointRestored(event.checkpoint, len(event.servers), event.ledger, event.id)))

    _HANDLERS: ClassVar[dict[type, Callable[[CheckpointMachine, Any, float], None]]] = {
        JobSubmitted: _submitted,
        JobCompleted: _completed,
        JobEnded: _ended,
        ServersChanged: _servers,
        MigrationStarted: _migrates,
        MigrationFinished: _migrated,
        Tick: _ticked,
        SaveAsked: _asked,
        Saved: _saved,
        Stored: _stored,
        Broken: _broken,
        Loaded: _loaded,
    }


def _reference(attempt: Attempt) -> Checkpoint:
    return Checkpoint(attempt.id, attempt.url, attempt.samples, attempt.size_bytes, len(attempt.servers))

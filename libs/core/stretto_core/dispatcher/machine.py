"""The durable shard ledger: who trains which samples, exactly once (DLRover-RM section 5.1).

What the public service of the paper gets wrong decides the shape: a lease has an attempt number, so that a zombie
cannot complete somebody else's; losing a pod never counts against the data; a worker that finds nothing free while
shards are in flight waits instead of going home; an unknown job is told apart from a finished one. A repeated
request gets the remembered reply.

Exactly-once at the parameter servers does not rest on this ledger's offsets: a requeued shard keeps its id and
range, and the new holder asks the progress records of the parameter servers where to go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stretto_core.dispatcher import events as ev
from stretto_core.dispatcher import facts as fa
from stretto_core.dispatcher.book import Book, Shard, migrated_book
from stretto_core.dispatcher.evaluating import Found
from stretto_core.dispatcher.source import LedgerError, Orders, Source
from stretto_core.dispatcher.state import LedgerSettings, LedgerState, OpenMark, Worker
from stretto_core.machine import Action, Emit, Reply, Tick

EXITED_MAX = 1000
COMPLETED = "completed"
MARK_SHARDS_MAX = 1000
MARK_OPEN_S = 900.0
"""a checkpoint that takes longer, or more shards, is refused its second mark and begins anew"""

LedgerEvent = (
    ev.JobOpened
    | ev.DataArrived
    | ev.NextRequested
    | ev.HeartbeatReceived
    | ev.ShardReturned
    | ev.MarkRequested
    | ev.AuditRequested
    | ev.LedgerRestored
    | ev.WorkerExited
    | ev.StragglerNamed
    | ev.JobClosed
    | Tick
)


class ShardLedger:
    """The ledger of one job."""

    version: int = 7

    def __init__(self, state: LedgerState | None = None, settings: LedgerSettings | None = None) -> None:
        self.state: LedgerState = state or LedgerState()
        self.settings = settings or LedgerSettings()
        self._orders = Orders()
        self._handlers: dict[type, Callable[[Any, float], list[Action]]] = {
            ev.JobOpened: self._open,
            ev.DataArrived: self._arrived,
            ev.NextRequested: self._next,
            ev.HeartbeatReceived: self._heartbeat,
            ev.ShardReturned: self._returned,
            ev.MarkRequested: self._mark,
            ev.AuditRequested: self._audit,
            ev.LedgerRestored: self._restore,
            ev.WorkerExited: self._exited,
            ev.StragglerNamed: self._straggler,
            ev.JobClosed: self._close,
            Tick: self._tick,
        }

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Up to version 5 all data were one partition, without a name."""
        book = state.get("book")
        return {**state, "book": migrated_book(book)} if book else state

    def handle(self, event: LedgerEvent, now: float) -> list[Action]:
        """Advance by one event. LedgerError, with the state unchanged unless it says so, for what cannot be true."""
        st, heard_at_s = self.state, self.state.heard_at_s
        excused = st.excuse_own_absence(now, self.settings.deaf_after_s)
        try:
            return self._handlers[type(event)](event, now)
        except LedgerError as error:
            st.heard_at_s, error.unchanged = heard_at_s, not excused
            raise

    @property
    def ticking(self) -> bool:
        """Whether silence matters: the job exists and is not over."""
        return self.state.book is not None and not self.state.closed

    # the job ---------------------------------------------------------------------------------------------------

    def _open(self, event: ev.JobOpened, now: float) -> list[Action]:
        st = self.state
        if st.book is None:
            st.book = Book(Source.begin(event.data, event.epochs, event.partitions))
            st.shard_failures_max = event.shard_failures_max
            if event.held_out is not None:
                st.held_out, st.evaluate_at = event.held_out, event.held_out.every
            st.opened_at_s = st.progress_at_s = now
        return []

    def _arrived(self, event: ev.DataArrived, now: float) -> list[Action]:
        """Nothing can come after the end was told. A job that has nothing left completes when a worker asks next."""
        book = self.state.book
        if book is None or self.state.closed or book.source.complete:
            return []
        book.source.arrive(event.arrivals)
        if event.closed:
            book.source.close()
        return []

    def _close(self, event: ev.JobClosed, now: float) -> list[Action]:
        if self.state.closed in ("", COMPLETED):
            self.state.take_back_all()
            self.state.closed = event.reason or "closed"
        return []

    def _mark(self, event: ev.MarkRequested, now: float) -> list[Action]:
        st, book = self.state, self.state.book
        if book is None:
            return [Reply(fa.MarkReply(None, 0))]
        leased = st.training()
        if event.after is None:
            st.mark = OpenMark(event.mark_id, now)
            return [Reply(fa.MarkReply(book.with_leases(leased), self.state.samples_seen(book)))]
        mark = st.mark
        if mark is None or mark.id != event.after:
            raise LedgerError("after", event.after, "the id of the last mark, if it is still open; mark anew")
        st.mark = None
        whole = book.with_leases([*leased, *mark.over], sure=False)
        whole.without(mark.over)
        return [Reply(fa.MarkReply(whole, whole.samples_done))]

    def _audit(self, event: ev.AuditRequested, now: float) -> list[Action]:
        book = self.state.book
        if book is None:
            return [Reply(fa.AuditReply(None, {}, ""))]
        workers = self.state.workers.items()
        leased = {name: w.lease.copy() for name, w in workers if w.lease and not w.lease.held_out}
        return [Reply(fa.AuditReply(book.with_leases([]), leased, self.state.closed))]

    def _note_over(self, shard: Shard) -> None:
        """While a checkpoint is taken: this shard ended, of which ``offset`` samples count as trained."""
        mark = self.state.mark
        if mark is None:
            return
        mark.over.append(shard.copy())
        if len(mark.over) > MARK_SHARDS_MAX:
            self.state.mark = None

    def _restore(self, event: ev.LedgerRestored, now: float) -> list[Action]:
        """A completed job is reopened: the parameters of its last shards are gone, and it completes once more."""
        st = self.state
        if st.book is None or st.closed not in ("", COMPLETED):
            return []
        st.closed = ""
        self.state.take_back_all()
        st.book = st.book.restored_from(event.book)
        st.finished.clear()
        st.mark = None
        if st.held_out is not None:
            st.evaluate_at = (st.book.samples_done // st.held_out.every + 1) * st.held_out.every
        for worker in st.workers.values():  # a remembered lease is of the time that was undone
            worker.request_id, worker.reply, worker.completed_id = "", None, -1
        return self._progress(now) + self._settle()

    # workers ---------------------------------------------------------------------------------------------------

    def _next(self, event: ev.NextRequested, now: float) -> list[Action]:
        st = self.state
        if st.book is None or event.worker in st.exited:
            return [Reply(fa.NextReply("unknown"))]
        worker = st.workers.get(event.worker)
        if worker is None:
            worker = st.workers[event.worker] = Worker(now)
        elif worker.lease is not None and worker.lease.held_out:
            self._check_found(worker.lease, event)
        worker.heard_at_s = now
        if worker.reply is not None and worker.request_id == event.request_id:
            return [Reply(worker.reply)]
        actions: list[Action] = []
        stale = event.completed_id is not None and not self._complete(st.book, worker, event, now, actions)
        reply = self._answer(st.book, worker, event.worker, now, actions)
        reply.stale = stale
        worker.request_id, worker.reply = event.request_id, reply
        actions.append(Reply(reply))
        if not st.closed and now - st.progress_at_s >= self.settings.progress_every_s:
            actions += self._progress(now)
        return actions

    def _complete(self, book: Book, worker: Worker, event: ev.NextRequested, now: float, actions: list[Action]) -> bool:
        """Book the worker's lease as done. False when the report is of another lease."""
        st, lease = self.state, worker.lease
        if lease is None or lease.id != event.completed_id or lease.attempt != event.completed_attempt:
            return (worker.completed_id, worker.completed_attempt) == (event.completed_id, event.completed_attempt)
        worker.lease = None
        worker.completed_id, worker.completed_attempt = lease.id, lease.attempt
        if lease.held_out:
            actions += self._evaluated(book, event.found)
            return True
        lease.offset = lease.length
        book.complete(lease)
        self._note_over(lease)
        st.remember_finished(lease, now)
        if st.may_tell(now, self.settings.shard_facts_per_s):
            actions.append(Emit(fa.ShardCompleted(lease, event.worker)))
        actions += self._settle()
        if st.held_out is not None and book.samples_done >= st.evaluate_at:
            st.begin_evaluation(book, st.held_out)
        return True

    def _answer(self, book: Book, worker: Worker, name: str, now: float, actions: list[Action]) -> fa.NextReply:
        st = self.state
        if st.closed:
            return fa.NextReply("end")
        if worker.lease is not None:  # asked again without completing: the reply was lost with its request id
            return fa.NextReply("shard", worker.lease.copy())
        spared = worker.slowdown > 1.0 and st.has_faster(worker, now)
        if st.evaluating is not None and st.evaluating.waiting and not spared:
            worker.lease, worker.moved_at_s = st.evaluating.lease(), now
            return fa.NextReply("shard", worker.lease.copy())
        shard = book.take(book.batches_for(worker.slowdown), self._orders, spared)
        if shard is None:
            actions += self._settle()
            if st.closed:
                return fa.NextReply("end")
            # nothing will be there within moments: no shard is in flight that could come back
            return fa.NextReply("wait", wait_s=self.settings.wait_s * (1 if st.leased() else 4))
        worker.lease, worker.moved_at_s = shard, now
        told = shard.copy()  # the lease's offset will grow; the reply and the fact are of this moment
        if st.may_tell(now, self.settings.shard_facts_per_s):
            actions.append(Emit(fa.ShardLeased(told, name)))
        return fa.NextReply("shard", told, forget=st.forgettable(now - self.settings.forget_after_s))

    # held-out samples ------------------------------------------------------------------------------------------

    @staticmethod
    def _check_found(lease: Shard, event: ev.NextRequested) -> None:
        if (event.completed_id, event.completed_attempt) != (lease.id, lease.attempt):
            return
        if event.found is None:
            raise LedgerError("evaluation", None, f"what was found: shard {lease.id} is to be evaluated, not trained")
        event.found.check(lease)

    def _evaluated(self, book: Book, found: Found | None) -> list[Action]:
        """One more shard was evaluated, or cannot be (None)."""
        st, running = self.state, self.state.evaluating
        if running is None:
            return []
        if found is None:
            running.give_up()
        else:
            running.add(found)
        if not running.over:
            return []
        st.evaluating = None
        if not running.samples:
            return []
        found_by_all = (running.samples, running.loss, running.auc)
        return [Emit(fa.EvaluationMeasured(running.samples_done, book.samples_done, *found_by_all))]

    # reports ---------------------------------------------------------------------------------------------------

    def _heartbeat(self, event: ev.HeartbeatReceived, now: float) -> list[Action]:
        lease, answer = self.state.lease_of(event.worker, event.shard_id, event.attempt)
        worker = self.state.workers.get(event.worker)
        if lease is not None:
            self._check_offset(lease, event.offset)
        if worker is not None:
            worker.heard_at_s = now
            if lease is not None and event.offset > lease.offset:
                lease.offset, worker.moved_at_s = event.offset, now
        actions: list[Action] = [Reply(fa.HeartbeatReply(answer))]
        if not self.state.closed and now - self.state.progress_at_s >= self.settings.progress_every_s:
            actions += self._progress(now)
        return actions

    def _returned(self, event: ev.ShardReturned, now: float) -> list[Action]:
        lease, answer = self.state.lease_of(event.worker, event.shard_id, event.attempt)
        book = self.state.book
        if lease is None or book is None:
            return [Reply(fa.ReturnReply(answer))]
        self._check_offset(lease, event.offset)
        lease.offset = max(lease.offset, event.offset)
        worker = self.state.workers[event.worker]
        worker.heard_at_s = now
        if event.failure is not None:
            lease.failures += 1
            if lease.failures >= self.state.shard_failures_max:
                worker.lease = None
                if lease.held_out:
                    return [*self._evaluated(book, None), Reply(fa.ReturnReply("ok"))]
                reason = f"failed {lease.failures} times, last in {event.worker}: {event.failure}"
                book.abandon(lease, reason)
                self._note_over(lease)
                return [Emit(fa.ShardAbandoned(lease, reason)), *self._settle(), Reply(fa.ReturnReply("ok"))]
        actions = self._requeue(event.worker, worker, "released" if event.failure is None else "failed")
        return [*actions, Reply(fa.ReturnReply("ok"))]

    def _exited(self, event: ev.WorkerExited, now: float) -> list[Action]:
        st = self.state
        if event.worker in st.exited:
            return []
        st.exited[event.worker] = now
        if len(st.exited) > EXITED_MAX:
            del st.exited[next(iter(st.exited))]
        worker = st.workers.pop(event.worker, None)
        return self._requeue(event.worker, worker, "pod-exited") if worker else []

    def _straggler(self, event: ev.StragglerNamed, now: float) -> list[Action]:
        """What it holds beyond a shard of its own size goes to the others, who would wait for it in the end."""
        book, worker = self.state.book, self.state.workers.get(event.worker)
        if book is None or worker is None or not math.isfinite(event.slowdown):
            return []
        worker.slowdown = max(1.0, event.slowdown)
        rest = worker.lease.length - worker.lease.offset if worker.lease else 0
        large = rest > book.batches_for(worker.slowdown) * book.data.batch_size
        return self._requeue(event.worker, worker, "straggler") if large and self.state.has_faster(worker, now) else []

    # time ------------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: float) -> list[Action]:
        st = self.state
        if st.book is None or st.closed:
            return []
        actions: list[Action] = []
        if st.mark is not None and now - st.mark.at_s > MARK_OPEN_S:
            st.mark = None
        for name, worker in st.workers.items():
            if worker.lease is not None and st.is_lost(worker, now, self.settings):
                actions += self._requeue(name, worker, "lease-expired")
        if now - st.progress_at_s >= self.settings.progress_every_s:
            actions += self._progress(now)
        return actions

    def _progress(self, now: float) -> list[Action]:
        """Tell how far the job is. The rate forgets with time constant ``rate_memory_s``."""
        st, book = self.state, self.state.book
        if book is None:
            return []
        seen, elapsed_s = self.state.samples_seen(book), now - st.progress_at_s
        if elapsed_s > 0 and seen >= st.progress_samples:
            measured = (seen - st.progress_samples) / elapsed_s
            weight = -math.expm1(-elapsed_s / self.settings.rate_memory_s) if st.samples_per_s else 1.0
            st.samples_per_s += weight * (measured - st.samples_per_s)
        unchanged = seen == st.progress_samples and not st.leased()
        st.progress_at_s, st.progress_samples = now, seen
        if unchanged and not book.settled:
            return []
        epoch = min(book.epoch, book.epochs - 1)
        fact = fa.JobProgressed(seen, book.samples_total, epoch, st.samples_per_s, st.leased(), st.requeued_total)
        return [Emit(fact)]

    # parts -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_offset(lease: Shard, offset: int) -> None:
        if not 0 <= offset <= lease.length:
            raise LedgerError(
                "offset", offset, f"0 to {lease.length}, the samples of shard {lease.id} that are applied"
            )

    def _requeue(self, name: str, worker: Worker, reason: str) -> list[Action]:
        """Put a worker's lease back, to be leased before any fresh data."""
        shard, book = worker.lease, self.state.book
        if shard is None or book is None:
            return []
        worker.lease = None
        if shard.held_out:
            if self.state.evaluating is not None:
                self.state.evaluating.take_back(shard)
            return []
        book.requeued.append(shard)
        self.state.requeued_total += 1
        return [Emit(fa.ShardRequeued(shard.copy(), name, reason))]

    def _settle(self) -> list[Action]:
        """The job's last fact, once every sample is done or abandoned."""
        st, book = self.state, self.state.book
        if book is None or st.closed or not book.settled:
            return []
        st.closed = COMPLETED
        self.state.take_back_all()
        fact = fa.JobCompleted(
            book.samples_done,
            book.samples_abandoned,
            book.epochs,
            book.shards_done,
            st.requeued_total,
            st.opened_at_s,
            book.samples_before,
            book.fingerprint,
            tuple(book.given_up),
            tuple(book.partial),
            book.unproven,
        )
        return [*self._progress(st.heard_at_s), Emit(fact)]

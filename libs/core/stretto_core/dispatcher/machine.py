"""The durable shard ledger: every sample is trained by one worker, exactly once (DLRover-RM section 5.1).

The errors of the paper's public service decide the shape: a lease has an attempt number, so that a zombie
cannot complete somebody else's; losing a pod never counts against the data; a worker that finds nothing free while
shards are in flight waits instead of going home; an unknown job is distinguished from a finished one. A repeated
request gets the remembered reply.

Exactly-once at the parameter servers does not rest on this ledger's offsets: a requeued shard keeps its id and
range, and the new holder asks the progress records of the parameter servers where to go on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from stretto_messages import values
from stretto_messages.actuator import JobFailed, ParametersLost, PodExited
from stretto_messages.base import bounded
from stretto_messages.checkpoints import CheckpointFlushed, ColumnsRestored
from stretto_messages.dispatcher import (
    AuditLedger,
    AuditLedgerReply,
    EvaluationMeasured,
    JobCompleted,
    JobProgressed,
    LedgerReturn,
    MarkLedger,
    MarkLedgerReply,
    NextShard,
    NextShardReply,
    RecomputationDecided,
    ReleaseShard,
    ReleaseShardReply,
    ReturnLedgerReply,
    ShardAbandoned,
    ShardCompleted,
    ShardHeartbeat,
    ShardHeartbeatReply,
    ShardLeased,
    ShardReport,
    ShardRequeued,
)
from stretto_messages.gateway import DataArrived, JobCancelled
from stretto_messages.profiler import StragglerCleared, StragglerDetected
from stretto_messages.values import Evaluation, PartialEvaluation

from stretto_core.dispatcher.book import Book, Shard
from stretto_core.dispatcher.evaluating import check_evaluation
from stretto_core.dispatcher.events import JobOpened, LedgerMark, LedgerRestored, ReturnAsked
from stretto_core.dispatcher.reports import completed_books, ledger_books, shard_message
from stretto_core.dispatcher.source import LedgerError, Orders, Source
from stretto_core.dispatcher.state import (
    RETURNS_RESERVE_S,
    LedgerSettings,
    LedgerState,
    OpenMark,
    Worker,
    faults_of,
    least_held_s,
)
from stretto_core.machine import Action, Emit, Reply, Tick, assert_no_new_fault

EXITED_MAX = 1000
COMPLETED = "completed"
MARK_SHARDS_MAX = 1000
MARK_OPEN_S = 900.0
"""Longest time between a checkpoint's two marks: after it, or after too many shards, the second mark is refused and the
checkpoint begins anew."""

RequeueReason = Literal["pod-exited", "lease-expired", "released", "failed", "straggler"]

LedgerEvent = (
    JobOpened
    | LedgerRestored
    | ReturnAsked
    | CheckpointFlushed
    | ParametersLost
    | ColumnsRestored
    | DataArrived
    | NextShard
    | ShardHeartbeat
    | ReleaseShard
    | MarkLedger
    | AuditLedger
    | PodExited
    | StragglerDetected
    | StragglerCleared
    | JobCancelled
    | JobFailed
    | Tick
)


class ShardLedger:
    """The ledger of one job. Larger than 250 lines: every method changes the same books, leases and workers."""

    version: int = 4

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of version 1 (no windows, no best evaluation), 2 (no pause for others) or 3 (no returns)."""
        return state

    def __init__(self, state: LedgerState | None = None, settings: LedgerSettings | None = None) -> None:
        self.state: LedgerState = state or LedgerState()
        self.settings = settings or LedgerSettings()
        self._orders = Orders()

    def handle(self, event: LedgerEvent, now: float) -> list[Action]:
        """Advance by one event. LedgerError, with the state unchanged unless it says so, for what cannot be true."""
        state, heard_at_s = self.state, self.state.heard_at_s
        # thousands of workers send these two, and the sum is over all workers; a completion is checked in any case
        before = None if isinstance(event, NextShard | ShardHeartbeat) else faults_of(state)
        excused = state.excuse_own_absence(now, self.settings.deaf_after_s)
        try:
            actions = self._decide(event, now)
        except LedgerError as error:
            state.heard_at_s, error.unchanged = heard_at_s, not excused
            raise
        if before is not None:
            assert_no_new_fault(before, faults_of(state))
        return actions

    def _decide(self, event: LedgerEvent, now: float) -> list[Action]:
        match event:
            case NextShard():
                return self._next(event, now)
            case ShardHeartbeat():
                return self._heartbeat(event, now)
            case ReleaseShard():
                return self._released(event, now)
            case Tick(machines=ledgers):
                return self._tick(ledgers, now)
            case MarkLedger():
                return [Reply(self._mark(event, now))]
            case AuditLedger():
                return [Reply(self._audit(event))]
            case ReturnAsked():
                return self._return(event, now)
            case _:
                return self._job_changed(event, now)

    def _job_changed(self, event: LedgerEvent, now: float) -> list[Action]:
        """Advance by an event that nobody waits for."""
        match event:
            case PodExited(pod=pod, role="worker" | "ps") if pod not in self.state.exited:
                return self._pod_exited(pod, now)
            case StragglerDetected(pod=pod, slowdown=slowdown):
                return self._pace_changed(pod, slowdown, now)
            case StragglerCleared(pod=pod):
                return self._pace_changed(pod, 1.0, now)
            case LedgerRestored():
                return self._restore(event, now)
            case ColumnsRestored(loss=loss) if loss == self.state.loss:
                return self._recompute(event, now)
            case ParametersLost():
                self._columns_lost(event)
            case CheckpointFlushed(checkpoint=checkpoint):
                self.state.allow_to_forget(self.state.ended.complete(checkpoint.id))
            case JobOpened() if self.state.book is None:
                self._open(event, now)
            case DataArrived():
                self._data_arrived(event)
            case JobCancelled(by=by):
                self._close(f"cancelled by {by}")
            case JobFailed(reason=reason):
                self._close(f"failed: {reason}")
            case _:
                pass
        return []

    @property
    def ticking(self) -> bool:
        """True while the machine needs ticks: the job exists and is not over."""
        return self.state.book is not None and not self.state.closed

    @property
    def ended(self) -> bool:
        """True once the job is over. Only a restore can open a completed one again."""
        return bool(self.state.closed)

    # the job ---------------------------------------------------------------------------------------------------

    def _open(self, event: JobOpened, now: float) -> None:
        state = self.state
        source = Source.begin(event.data, event.epochs, event.partitions, event.window_samples)
        state.job, state.book = event.job, Book(source)
        state.shard_failures_max = event.shard_failures_max
        state.best = event.best
        state.runs_program, state.returns = event.runs_program, event.returns
        if event.held_out is not None:
            state.held_out, state.evaluate_at = event.held_out, event.held_out.every
        state.opened_at_s = state.progress_at_s = now

    def _data_arrived(self, event: DataArrived) -> None:
        """Add data, unless their end was published. A job with nothing left completes when a worker asks next."""
        book = self.state.book
        if book is None or self.state.closed or book.source.complete:
            return
        book.source.arrive(event.partitions)
        if event.closed:
            book.source.close()

    def _close(self, reason: str) -> None:
        if self.state.closed in ("", COMPLETED):
            self.state.take_back_all()
            self.state.closed = reason

    def _mark(self, event: MarkLedger, now: float) -> LedgerMark | MarkLedgerReply:
        """Return the books for a checkpoint.

        A single mark (``after`` None) belongs to images of its own instant, with pushes frozen. Images that are copied
        while training goes on are exact only between two marks: the second one lists as outstanding whatever was not
        complete at the first or was leased since, under its id, so that the records in the images can filter it.
        """
        state, book = self.state, self.state.book
        if book is None:
            return MarkLedgerReply(job=event.job, answer="unknown")
        leased = [shard for _, shard in state.training()]
        if event.after is None:
            state.mark = OpenMark(event.request_id, now)
            if event.checkpoint:
                state.ended.mark(event.checkpoint)
            return LedgerMark(event.job, book.with_leases(leased), state.samples_seen(book))
        mark = state.mark
        if mark is None or mark.id != event.after:
            raise LedgerError("after", event.after, "the id of the last mark, if it is still open; mark anew")
        state.mark = None
        whole = book.with_leases([*leased, *mark.over], sure=False)
        whole.without(mark.over)
        return LedgerMark(event.job, whole, whole.samples_done)

    def _audit(self, event: AuditLedger) -> AuditLedgerReply:
        book = self.state.book
        if book is None:
            return AuditLedgerReply(job=event.job, answer="unknown")
        books = ledger_books(book, self.state.training(), self.state.closed, self.state.samples_recomputed)
        return AuditLedgerReply(job=event.job, answer="ok", ledger=books)

    def _note_over(self, shard: Shard, now: float) -> None:
        """Remember a shard that ended, of which ``offset`` samples count as trained."""
        self.state.remember_ended(shard, now)
        mark = self.state.mark
        if mark is None:
            return
        mark.over.append(shard.copy())
        if len(mark.over) > MARK_SHARDS_MAX:
            self.state.mark = None

    def _restore(self, event: LedgerRestored, now: float) -> list[Action]:
        """A completed job is reopened: the parameters of its last shards are gone, and it completes once more."""
        st = self.state
        if st.book is None or st.closed not in ("", COMPLETED):
            return []
        st.closed, st.lineage = "", event.lineage
        self.state.take_back_all()
        returned = _return_to(event.checkpoint, st.book, event.book)
        st.book = st.book.restored_from(event.book)
        st.finished.clear()
        st.ended.returned_to(event.checkpoint)
        st.mark, st.loss = None, 0
        if st.best is not None:
            st.best.return_to(st.book.samples_done)
        if st.held_out is not None:
            st.evaluate_at = st.held_out.after(st.book.samples_done)
        for worker in st.workers.values():  # a remembered lease is of the time that was undone
            worker.request_id, worker.reply, worker.completed_id = "", None, -1
        return self._progress(now, returned) + self._settle()

    def _return(self, event: ReturnAsked, now: float) -> list[Action]:
        """Go back with the parameters of a program.

        Refused once the job is over, whose books stay as they are, and to a pod whose end was told. Raises LedgerError
        for books of other data, and for those of a job whose program keeps no checkpoints.
        """
        st, restored = self.state, event.restored
        if not st.returns and st.book is not None:
            raise LedgerError("job", event.job, "one whose program keeps checkpoints, at level 2")
        if st.book is None or st.closed or event.pod in st.exited:
            return [Reply(ReturnLedgerReply(job=event.job, answer="unknown"))]
        if not st.book.source.same_data(restored.book.source):
            remedy = "one of this job's data; another job of this name has used this store: remove its folder there"
            raise LedgerError("checkpoint", restored.checkpoint, remedy)
        actions = self._restore(restored, now)
        return [*actions, Reply(ReturnLedgerReply(job=event.job, answer="ok", samples_done=st.book.samples_done))]

    def _columns_lost(self, event: ParametersLost) -> None:
        """Until the columns are back nothing completes. A completed job is reopened: they lack its last shards."""
        st = self.state
        if st.book is None or st.closed not in ("", COMPLETED):
            return
        st.closed, st.loss, st.servers_version = "", event.version, event.version
        if st.evaluating is not None and st.evaluating.window is not None:
            self._drop_evaluation()  # it begins anew once the columns have what they lost
        st.distrust_reports(st.book)

    def _recompute(self, event: ColumnsRestored, now: float) -> list[Action]:
        """Hand out again what the restored columns lack, or say that the books cannot tell."""
        st, name = self.state, event.checkpoint.id
        if st.book is None or st.closed:
            return []
        if event.columns and st.ended.checkpoint != name:
            known = f"those ended since {st.ended.checkpoint}" if st.ended.checkpoint else "no such checkpoint"
            reason = f"the shards that ended since checkpoint {name} are not all known; the ledger knows {known}"
            return [Emit(RecomputationDecided(job=st.job, loss=st.loss, checkpoint=name, granted=False, reason=reason))]
        shards, samples = st.recompute(st.book) if event.columns else (0, 0)
        decided = RecomputationDecided(
            job=st.job, loss=st.loss, checkpoint=name, granted=True, shards=shards, samples=samples
        )
        st.loss = 0
        return [Emit(decided), *self._progress(now, recomputed=True), *self._settle()]

    # workers ---------------------------------------------------------------------------------------------------

    def _next(self, event: NextShard, now: float) -> list[Action]:
        st, done = self.state, event.complete
        _check_worker(event.pod)
        if st.book is None or event.pod in st.exited:
            return [Reply(NextShardReply(job=event.job, answer="unknown"))]
        worker = st.admit(event.pod, now)
        if worker.lease is not None and worker.lease.held_out:
            self._check_found(worker.lease, done)
        worker.heard_at_s = now
        if worker.reply is not None and worker.request_id == event.request_id:
            return [Reply(worker.reply)]
        actions: list[Action] = []
        stale = done is not None and not self._complete(st.book, worker, event.pod, done, now, actions)
        answer = self._answer(st.book, worker, event.pod, stale, now, actions)
        ahead = self._ahead(st.book, worker) if event.ahead and answer.shard is not None else None
        reply = replace(answer, servers_version=st.servers_version, ahead=ahead)
        worker.request_id, worker.reply = event.request_id, reply
        actions.append(Reply(reply))
        if not st.closed and self._is_progress_due(now):
            actions += self._progress(now)
        return actions

    def _complete(
        self, book: Book, worker: Worker, name: str, done: ShardReport, now: float, actions: list[Action]
    ) -> bool:
        """Book the worker's lease as done. False when the report is of another lease."""
        st, lease = self.state, worker.lease
        if lease is None or lease.id != done.id or lease.attempt != done.attempt:
            return (worker.completed_id, worker.completed_attempt) == (done.id, done.attempt)
        worker.lease = None
        worker.completed_id, worker.completed_attempt = lease.id, lease.attempt
        if lease.held_out:
            actions += self._evaluated(book, done.evaluation)
            return True
        lease.offset = lease.length
        book.complete(lease)
        self._note_over(lease, now)
        if st.may_tell(now, self.settings.shard_facts_per_s):
            actions.append(Emit(ShardCompleted(job=st.job, shard=shard_message(lease), pod=name)))
        actions += self._settle()
        if st.held_out is not None and book.samples_done >= st.evaluate_at:
            st.evaluate_at = st.held_out.after(book.samples_done)
            if st.evaluating is None and not st.closed:
                st.begin_evaluation(book, st.held_out.range)
        return True

    def _answer(
        self, book: Book, worker: Worker, name: str, stale: bool, now: float, actions: list[Action]
    ) -> NextShardReply:
        st = self.state
        if st.closed:
            return NextShardReply(job=st.job, answer="end", stale=stale)
        if worker.lease is not None:  # asked again without completing: the reply was lost with its request id
            return _leases(st, worker.lease, stale)
        spared = worker.slowdown > 1.0 and st.has_faster(worker, now)
        self._open_window(book)
        if st.evaluating is not None and st.evaluating.waiting and not spared:
            worker.lease, worker.moved_at_s = st.evaluating.lease(), now
            return _leases(st, worker.lease, stale)
        shard, worker.ahead = worker.ahead, None
        shard = shard or book.take(book.batches_for(worker.slowdown), self._orders, spared)
        if shard is None:
            actions += self._settle()
            if st.closed:
                return NextShardReply(job=st.job, answer="end", stale=stale)
            # nothing will be there within moments: no shard is in flight that could come back
            wait_s = self.settings.wait_s * (1 if st.leased() else 4)
            return NextShardReply(job=st.job, answer="wait", wait_s=wait_s, stale=stale)
        worker.lease, worker.moved_at_s = shard, now
        if st.may_tell(now, self.settings.shard_facts_per_s):
            actions.append(Emit(ShardLeased(job=st.job, shard=shard_message(shard), pod=name)))
        return _leases(st, shard, stale, st.forgettable(now - self.settings.forget_after_s))

    def _ahead(self, book: Book, worker: Worker) -> values.Shard | None:
        """Return the shard that the worker trains after its lease, if it may hold one."""
        self.state.reserve_ahead(book, worker, self._orders)
        return shard_message(worker.ahead) if worker.ahead is not None else None

    # held-out samples ------------------------------------------------------------------------------------------

    def _drop_evaluation(self) -> None:
        """Drop the running evaluation, and the leases of its shards: a late result must not enter another one."""
        for worker in self.state.workers.values():
            if worker.lease is not None and worker.lease.held_out:
                worker.lease, worker.request_id, worker.reply = None, "", None
        self.state.evaluating = None

    def _open_window(self, book: Book) -> None:
        """Begin to evaluate the next window once all before it is trained; a first one is only trained."""
        st = self.state
        window = book.source.next_window()
        if window is None or book.requeued or book.remainder or st.evaluating or st.leased() or st.loss:
            return
        if book.samples_done + book.samples_before == 0:
            book.source.admit(window)
            return
        first = min(window.length, book.source.window_samples)
        st.begin_evaluation(book, replace(window, length=first), window)

    @staticmethod
    def _check_found(lease: Shard, done: ShardReport | None) -> None:
        if done is None or (done.id, done.attempt) != (lease.id, lease.attempt):
            return
        if done.evaluation is None:
            raise LedgerError("evaluation", None, f"what was found: shard {lease.id} is to be evaluated, not trained")
        check_evaluation(done.evaluation, lease)

    def _evaluated(self, book: Book, part: PartialEvaluation | None) -> list[Action]:
        """Book one more shard as evaluated, or as unreadable (None)."""
        st, running = self.state, self.state.evaluating
        if running is None:
            return []
        if part is None:
            running.give_up()
        else:
            running.add(part)
        if not running.over:
            return []
        st.evaluating = None
        if running.window is not None:
            book.source.admit(running.window)
        if not running.samples:
            return []
        found = Evaluation(
            samples=running.samples,
            loss=running.loss,
            auc=running.auc,
            metrics=running.metrics,
            loss_name=running.loss_name,
        )
        measured = EvaluationMeasured(
            job=st.job,
            samples_done=running.samples_done,
            samples_done_after=book.samples_done,
            partition=running.partition,
            trained_next=running.window is not None,
            best=running.window is None and st.best is not None and st.best.judge(found, running.samples_done),
            evaluation=found,
        )
        return [Emit(measured), *self._stop_early(book)]

    def _stop_early(self, book: Book) -> list[Action]:
        """Open nothing more if too many evaluations in a row were not better."""
        verdict = self.state.best.verdict if self.state.best is not None else ""
        if not verdict or book.source.stopped:
            return []
        book.source.stop(verdict)
        return self._settle()

    # reports ---------------------------------------------------------------------------------------------------

    def _heartbeat(self, event: ShardHeartbeat, now: float) -> list[Action]:
        _check_worker(event.pod)
        lease, answer = self.state.lease_of(event.pod, event.shard, event.attempt)
        worker = self.state.workers.get(event.pod)
        if lease is not None:
            self._check_offset(lease, event.offset)
        if worker is not None:
            worker.heard_at_s = now
            if lease is not None and event.offset > lease.offset:
                lease.offset, worker.moved_at_s = event.offset, now
        actions: list[Action] = [Reply(ShardHeartbeatReply(job=event.job, answer=answer))]
        if not self.state.closed and self._is_progress_due(now):
            actions += self._progress(now)
        return actions

    def _released(self, event: ReleaseShard, now: float) -> list[Action]:
        _check_worker(event.pod)
        st, book = self.state, self.state.book
        lease, answer = st.lease_of(event.pod, event.shard, event.attempt)
        reply = Reply(ReleaseShardReply(job=event.job, answer=answer))
        if lease is None or book is None:
            return [reply]
        self._check_offset(lease, event.offset)
        worker = st.workers[event.pod]
        _check_release(lease, now - worker.moved_at_s)
        lease.offset = max(lease.offset, event.offset)
        worker.heard_at_s = now
        if event.failure is not None:
            lease.failures += 1
            if lease.failures >= st.shard_failures_max:
                worker.lease = None
                st.take_back_ahead(book, worker)
                if lease.held_out:
                    return [*self._evaluated(book, None), reply]
                reason = f"failed {lease.failures} times, last in {event.pod}: {event.failure}"
                book.abandon(lease, reason)
                self._note_over(lease, now)
                abandoned = ShardAbandoned(job=st.job, shard=shard_message(lease), reason=bounded(reason))
                return [Emit(abandoned), *self._settle(), reply]
        why: RequeueReason = "released" if event.failure is None else "failed"
        return [*self._requeue(event.pod, worker, why, now, event.repeated), reply]

    def _pod_exited(self, pod: str, now: float) -> list[Action]:
        st = self.state
        st.exited[pod] = now
        if len(st.exited) > EXITED_MAX:
            del st.exited[next(iter(st.exited))]
        worker = st.workers.pop(pod, None)
        return self._requeue(pod, worker, "pod-exited", now) if worker else []

    def _pace_changed(self, pod: str, slowdown: float, now: float) -> list[Action]:
        """Give what a straggler holds beyond a shard of its own size to the others: they would wait for it at the end.

        ``slowdown``: step time over the peers' median; 1 when it keeps pace.
        """
        book, worker = self.state.book, self.state.workers.get(pod)
        if book is None or worker is None or not math.isfinite(slowdown):
            return []
        worker.slowdown = max(1.0, slowdown)
        if worker.slowdown > 1.0:
            self.state.take_back_ahead(book, worker)
        rest = worker.lease.length - worker.lease.offset if worker.lease else 0
        large = rest > book.batches_for(worker.slowdown) * book.data.batch_size
        return self._requeue(pod, worker, "straggler", now) if large and self.state.has_faster(worker, now) else []

    # time ------------------------------------------------------------------------------------------------------

    def _tick(self, ledgers: int, now: float) -> list[Action]:
        st = self.state
        if st.book is None or st.closed:
            return []
        st.progress_pause_s = ledgers / self.settings.progress_per_s
        actions: list[Action] = []
        if st.mark is not None and now - st.mark.at_s > MARK_OPEN_S:
            st.mark = None
        for name in st.lost(now, self.settings):
            actions += self._requeue(name, st.workers[name], "lease-expired", now)
        st.forget_silent(now)
        if self._is_progress_due(now):
            actions += self._progress(now)
        return actions

    def _is_progress_due(self, now: float) -> bool:
        return now - self.state.progress_at_s >= max(self.settings.progress_every_s, self.state.progress_pause_s)

    def _progress(self, now: float, returned: LedgerReturn | None = None, recomputed: bool = False) -> list[Action]:
        """Publish the job's progress. The rate forgets with time constant ``rate_memory_s``."""
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
        if unchanged and not book.settled and returned is None and not recomputed:
            return []
        epoch = min(book.epoch, book.epochs - 1)
        progressed = JobProgressed(
            job=st.job,
            samples_done=seen,
            samples_total=book.samples_total,
            epoch=epoch,
            samples_per_s=st.samples_per_s,
            shards_leased=st.leased(),
            shards_requeued_total=st.requeued_total,
            returned=returned,
            samples_recomputed=st.samples_recomputed,
        )
        return [Emit(progressed)]

    # parts -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_offset(lease: Shard, offset: int) -> None:
        if not 0 <= offset <= lease.length:
            raise LedgerError(
                "offset", offset, f"0 to {lease.length}, the samples of shard {lease.id} that are applied"
            )

    def _requeue(self, name: str, worker: Worker, reason: RequeueReason, now: float, repeated: int = 0) -> list[Action]:
        """Put back what a worker holds, to be leased before any fresh data. Nobody began the shard ahead: no fact."""
        shard, book = worker.lease, self.state.book
        if shard is None or book is None:
            return []
        self.state.take_back(book, worker)
        if shard.held_out:
            return []
        self.state.requeued_total += 1
        if self.state.runs_program:
            self.state.samples_recomputed += perhaps_repeated(shard, reason, book.data.batch_size, repeated)
        if not self.state.may_tell(now, self.settings.shard_facts_per_s, RETURNS_RESERVE_S):
            return []
        requeued = ShardRequeued(job=self.state.job, shard=shard_message(shard), pod=name, reason=reason)
        return [Emit(requeued)]

    def _settle(self) -> list[Action]:
        """The job's last fact, once every sample is done or abandoned."""
        st, book = self.state, self.state.book
        if book is None or st.closed or st.loss or not book.settled:
            return []
        st.closed = COMPLETED
        self.state.take_back_all()
        assert_no_new_fault((), faults_of(st))
        completed = JobCompleted(
            job=st.job,
            samples=book.samples_done,
            samples_abandoned=book.samples_abandoned,
            epochs=book.epochs,
            shards=book.shards_done,
            requeued=st.requeued_total,
            started_at_s=st.opened_at_s,
            books=completed_books(book, st.samples_recomputed),
            stopped=bounded(book.source.stopped),
            samples_left=book.source.samples_left,
        )
        return [*self._progress(st.heard_at_s), Emit(completed)]


def _leases(state: LedgerState, shard: Shard, stale: bool, forget: tuple[int, ...] = ()) -> NextShardReply:
    return NextShardReply(
        job=state.job,
        answer="shard",
        shard=shard_message(shard),
        stale=stale,
        forget=forget,
        lineage=state.lineage,
    )


def perhaps_repeated(shard: Shard, reason: RequeueReason, batch_size: int, told: int = 0) -> int:
    """Return how many samples of a shard that comes back a program may train a second time.

    Who gives a shard back says how far it was, and how many samples behind that it has begun (``told``): one that
    fails at most a batch, ranks of one program a batch each. Of a lost one only its last heartbeat is known.
    """
    rest = shard.length - shard.offset
    return min({"released": told, "failed": max(batch_size, told)}.get(reason, rest), rest)


def _check_worker(pod: str) -> None:
    if not pod.startswith("worker-"):
        raise LedgerError("pod", pod, "the name of a worker; no other pod leases shards")


def _check_release(lease: Shard, held_s: float) -> None:
    """Refuse the release of a shard that went from hand to hand, until its holder has held it for a while."""
    least_s = least_held_s(lease.attempt)
    if held_s < least_s:
        text = f"a lease that is held for {least_s:g} s before its release: train the shard, or release it later"
        raise LedgerError("attempt", lease.attempt, text)


def _return_to(checkpoint: str, book: Book, mark: Book) -> LedgerReturn | None:
    """Return what a return changes; None for books of other data, whose samples cannot be compared."""
    if not checkpoint or not book.source.same_data(mark.source):
        return None
    gained, undone = book.compared_with(mark)
    return LedgerReturn(
        checkpoint=checkpoint, samples_before=book.samples_done, samples_gained=gained, samples_undone=undone
    )

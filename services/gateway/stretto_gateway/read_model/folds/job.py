"""Folds of events about a job's course and its decisions."""

from __future__ import annotations

from functools import singledispatchmethod

from stretto_messages.actuator import JobFailed, JobFinished, PlanApplied
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import DataWorkersRequested, JobCancelled, PlanRequested
from stretto_messages.planner import CandidatesComputed, HistoryMatched, PlanProposed
from stretto_wire.rest import views

from .fold import Fold, Returned, push

RETURNS_LIMIT = 50
REQUESTS = 100
GIVEN_UP_SHOWN = 20
"""Number of shards that were given up in the view of a finished job, with their reasons; its audit lists ten times as
many."""


def unstored(view: views.JobView) -> str:
    """Return why the trained parameters of a job were not stored, with the remedy; empty if they were stored."""
    if not view.final_checkpoint_failure:
        return ""
    stored = [each.checkpoint for each in view.checkpoints if each.stage in ("stored", "restored") and each.checkpoint]
    earlier = f" with checkpoint.restore_from = {stored[-1].url}, the last one that was stored" if stored else ""
    failure = view.final_checkpoint_failure.removeprefix("not stored: ")
    return (
        f"the trained parameters are lost: final checkpoint not stored: {failure}; "
        f"mend the store and submit the job under another name{earlier}"
    )


def shortfall(view: views.JobView) -> str:
    """Return what a finished job lacks, with reasons and remedies; empty if all samples are trained and stored."""
    return "; ".join(filter(None, (unstored(view), untrained(view))))


def untrained(view: views.JobView) -> str:
    """Return how many samples of a job were given up, and the last reason; empty if none were."""
    given_up, total = view.progress.samples_given_up, view.progress.samples_total
    if not given_up:
        return ""
    told = view.books.given_up if view.books else []
    last = f"; the last: {told[-1].reason}" if told else ""
    share = f" ({given_up / total:.2%})" if total else ""
    return f"{given_up:,} of {total:,} samples{share} were given up: `stretto audit {view.name}` lists them{last}"


class JobFold(Fold):
    """Fold of events about the job's course and its decisions."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    # the job -----------------------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: JobCancelled) -> None:
        self._end("cancelled", message.reason or f"by {message.by}")

    @fold.register
    def _(self, message: JobFailed) -> None:
        self._end("failed", message.reason)

    @fold.register
    def _(self, message: JobProgressed) -> None:
        self._train()
        progress = self.view.progress
        if message.samples_done != progress.samples_done:  # a restore lowers the number, which is progress, too
            progress.advanced_at_s = self.time_s
        progress.samples_done = message.samples_done
        progress.samples_total = message.samples_total
        progress.samples_given_up = self.view.data.given_up
        progress.epoch = message.epoch
        progress.samples_per_s = message.samples_per_s
        progress.samples_recomputed = message.samples_recomputed
        progress.updated_at_s = self.time_s
        if message.returned is not None:
            push(self.evidence.returns, Returned(self.seq, self.time_s, message.returned), RETURNS_LIMIT)
            self._clear_leases()  # the ledger took every lease back, also from dead pods

    @fold.register
    def _(self, message: JobCompleted) -> None:
        self.evidence.completed = message
        self.view.final_checkpoint_failure = ""  # a failure belonged to an earlier completion, which was undone
        self.view.progress.samples_done = message.samples
        # a return to a checkpoint undoes what was given up since then: the final number is without that
        self.view.progress.samples_given_up = message.samples_abandoned
        self.view.progress.updated_at_s = self.time_s
        if self.view.status not in views.OVER:
            self.view.status = "finishing"
            self._enter("finishing", "every sample trained; books and evaluation")

    @fold.register
    def _(self, message: JobFinished) -> None:
        completed, self.evidence.finished = self.evidence.completed, message
        self.view.books = views.Books(
            samples_expected=message.samples_expected,
            samples_applied=message.samples_applied,
            samples_lost=message.samples_lost,
            samples_repeated=message.samples_repeated,
            repeats_recognised=message.repeats_recognised,
            samples_abandoned=completed.samples_abandoned if completed else 0,
            rows=message.rows,
            checksum=message.checksum,
            evaluation=message.evaluation,
            shards=completed.shards if completed else self.view.shards.completed,
            requeued=completed.requeued if completed else self.view.shards.requeued,
            given_up=[*completed.books.given_up[-GIVEN_UP_SHOWN:]] if completed and completed.books else [],
        )
        self._end("finished", shortfall(self.view))

    def _end(self, status: views.Status, reason: str) -> None:
        if self.view.status in views.OVER:
            return
        self.view.status = status
        self.view.reason = reason
        self.view.ended_at_s = self.time_s
        self.view.progress.samples_per_s = 0.0
        if self.evidence.completed is None:
            self.view.progress.samples_given_up = self.view.data.given_up
        self._clear_leases()
        self.view.phases[-1].ended_at_s = self.time_s

    def _clear_leases(self) -> None:
        self.view.shards.leased.clear()
        self.evidence.leases.clear()

    # decisions ---------------------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: HistoryMatched) -> None:
        self.evidence.warm_start = views.WarmStart(self.time_s, message.matches, message.smoothing, message.plan)

    @fold.register
    def _(self, message: CandidatesComputed) -> None:
        self.view.front = views.Front(
            self.time_s, message.algorithm, message.plans_considered, message.throughput, message.candidates
        )

    @fold.register
    def _(self, message: PlanProposed) -> None:
        self.evidence.proposals[message.kind] = views.Proposal(
            self.time_s,
            message.kind,
            message.plan,
            message.throughput,
            message.throughput_interval,
            message.reasons,
        )

    @fold.register
    def _(self, message: PlanDecided) -> None:
        view, evidence = self.view, self.evidence
        measured = evidence.measured_settled or evidence.measured
        before = message.throughput_before or (measured.throughput if measured else None)
        view.plan, view.plan_version, view.cost_per_hour = message.plan, message.version, message.cost_per_hour
        push(
            view.decisions,
            views.Decision(
                version=message.version,
                kind=message.kind,
                time_s=self.time_s,
                seq=self.seq,
                plan=message.plan,
                previous=message.previous,
                throughput=message.throughput,
                throughput_interval=message.throughput_interval,
                throughput_before=before,
                cost_per_hour=message.cost_per_hour,
                reasons=message.reasons,
                alternatives=message.alternatives,
                algorithm=message.algorithm,
                free_cpu_cores=message.free_cpu_cores,
                free_memory_bytes=message.free_memory_bytes,
                free_extended=message.free_extended,
                round=message.round,
                measured=measured,
                fitted=view.model.basis() if view.model else None,
                front=view.front if message.kind in ("improve", "measure", "fit-capacity") else None,
                proposal=evidence.proposals.get(message.kind),
                warm_start=evidence.warm_start if message.previous is None else None,
                forecast=view.forecast if message.kind == "memory" else None,
            ),
        )
        if view.status in ("submitted", "waiting"):
            view.status, view.reason = "starting", ""
        self._enter("applying", f"plan {message.version} ({message.kind})")

    @fold.register
    def _(self, message: PlanRequested) -> None:
        push(self.view.requests, views.Request(self.time_s, message.by, "plan", plan=message.plan), REQUESTS)

    @fold.register
    def _(self, message: DataWorkersRequested) -> None:
        push(self.view.requests, views.Request(self.time_s, message.by, "data-workers", data=message.count), REQUESTS)

    @fold.register
    def _(self, message: PlanRefused) -> None:
        push(self.view.refusals, views.Refusal(self.time_s, message.kind, message.wanted, message.reasons))
        if self.view.status in ("submitted", "waiting"):
            self.view.status, self.view.reason = "waiting", message.reasons[-1] if message.reasons else ""

    @fold.register
    def _(self, message: PlanApplied) -> None:
        self.view.applied_version = message.version
        for decision in reversed(self.view.decisions):
            if decision.version == message.version:
                decision.outcome.applied_at_s, decision.outcome.took_s = self.time_s, message.took_s
                break
        if message.version == self.view.plan_version and self.view.status not in (*views.OVER, "finishing"):
            self._enter("steady", f"plan {message.version}")

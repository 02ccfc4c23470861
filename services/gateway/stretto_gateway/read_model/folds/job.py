"""Folds of events about a job's course and its decisions."""

from __future__ import annotations

from functools import singledispatchmethod

from stretto_core.actuator.ending import given_up, not_stored
from stretto_core.checkpoints.names import is_final
from stretto_messages.actuator import JobFailed, JobFinished, PlanApplied
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import DataWorkersRequested, JobCancelled, PlanRequested
from stretto_messages.objects.decider import ObjectReleased, SizeSettled
from stretto_messages.planner import CandidatesComputed, HistoryMatched, PlanProposed
from stretto_wire.rest import views
from stretto_wire.rest.sentences import sentence

from .fold import GIVEN_UP_SHOWN, Fold, Returned, push

RETURNS_LIMIT = 50
REQUESTS = 100


def judge(view: views.JobView) -> None:
    """Say how a finished job ended; the end of its final checkpoint may be known only afterwards."""
    stored = [each.checkpoint for each in view.checkpoints if each.stage in ("stored", "restored") and each.checkpoint]
    own = [each for each in stored if each.url.split("/")[-3:-2] == [view.name]]  # not the one that it started from
    if own and is_final(own[-1].id):  # the others go with the job's end, but for the best one
        best = view.best_checkpoint
        view.stored_bytes = own[-1].size_bytes + (best.size_bytes if best and best.id != own[-1].id else 0)
    unstored = not_stored(view.final_checkpoint_failure, stored[-1].url if stored else "")
    others = [each for each in view.shortfalls if each.kind != "not-stored"]
    view.shortfalls = [unstored, *others] if unstored else others
    view.ending = ", ".join(each.words for each in view.shortfalls)
    view.complete = not any(each.lacking for each in view.shortfalls)
    view.reason = "; ".join(each.detail for each in view.shortfalls)


class JobFold(Fold):
    """Fold of events about the job's course and its decisions."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    # the job -----------------------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: JobCancelled) -> None:
        self._end("cancelled", f"cancelled by {message.by}" + (f": {message.reason}" if message.reason else ""))

    @fold.register
    def _(self, message: JobFailed) -> None:
        self._end("failed", message.reason)

    @fold.register
    def _(self, message: ObjectReleased) -> None:
        endings: dict[str, views.Status] = {"complete": "finished", "failed": "failed", "gone": "cancelled"}
        self._end(endings[message.ending], message.reason)

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
            self._forget_final_failure()
            self._clear_leases()  # the ledger took every lease back, also from dead pods

    @fold.register
    def _(self, message: JobCompleted) -> None:
        self.evidence.completed = message
        self._forget_final_failure()
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
        if message.evaluation is not None:
            self.view.quality = views.quality_of(message.evaluation)
        lost = given_up(completed) if completed and not message.shortfalls else None  # events of before have none
        self.view.shortfalls = [lost] if lost else [*message.shortfalls]
        self._end("finished", "")
        if self.view.status == "finished":
            judge(self.view)

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
        self.evidence.warm_start = views.WarmStart(
            self.time_s, message.matches, message.smoothing, message.plan, message.speeds
        )

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
        cost_before = view.cost_per_hour
        view.plan, view.plan_version, view.cost_per_hour = message.plan, message.version, message.cost_per_hour
        decision = views.Decision(
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
            cost_before=cost_before,
            reads_per_step=message.reads_per_step,
        )
        decision.in_words = sentence(decision)
        push(view.decisions, decision)
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
        if isinstance(message, SizeSettled) and message.version == self.view.applied_version:
            return  # told again with each change of size under the same plan
        self.view.applied_version = message.version
        for decision in reversed(self.view.decisions):
            if decision.version == message.version:
                decision.outcome.applied_at_s, decision.outcome.took_s = self.time_s, message.took_s
                break
        if message.version == self.view.plan_version and self.view.status not in (*views.OVER, "finishing"):
            self._enter("steady", f"plan {message.version}")

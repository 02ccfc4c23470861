"""The projection: a pure fold over the stream, from events to :class:`JobView`.

The same sequence of events gives the same views. An event whose sequence was applied already changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import stretto_wire as wire
from stretto_messages.actuator import JobFinished
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.planner import HistoryRecorded
from stretto_wire.program import promise_of
from stretto_wire.rest import views
from stretto_wire.rest.summaries import PastJob

from .folds.cost import CostFold
from .folds.data_workers import DataWorkerFold
from .folds.fold import Evidence, Returned
from .folds.job import JobFold
from .folds.learning import LearningFold, take
from .folds.measurements import MeasurementFold
from .folds.pods import PodFold
from .parts import Revisions

Reads = Callable[[str], bool]
"""Test whether a caller may read the jobs of a team."""


class Projection:
    """The views of all jobs. Only ``apply`` changes them; ``jobs`` and ``history`` are for reading."""

    def __init__(self) -> None:
        self.jobs: dict[str, views.JobView] = {}
        self.history: dict[str, PastJob] = {}
        self.last_seq = 0
        self.strangers = 0
        """Number of events of jobs that were never submitted."""
        self._evidence: dict[str, Evidence] = {}

    def report(self, message: Message, time_s: float) -> None:
        """Fold in a report of a pod; the report of an unknown job changes nothing."""
        view = self.jobs.get(message.job)
        if view is not None:
            for fold in (MeasurementFold, DataWorkerFold):
                fold(view, self._evidence[message.job], view.last_seq, time_s).fold(message)
            self._evidence[message.job].revisions.note_report()

    def apply(self, message: Message, seq: int, time_s: float, trace_id: str | None = None) -> views.JobView | None:
        """Fold in an event; returns the view that the event changed, or None."""
        if seq <= self.last_seq:
            return None
        self.last_seq = seq
        if isinstance(message, HistoryRecorded):
            self._record_history(message, time_s)
            return self.jobs.get(message.job)
        if isinstance(message, wire.JobSubmitted):
            return self._submit(message, seq, time_s, trace_id)
        view = self.jobs.get(message.job)
        if view is None:
            self.strangers += 1
            return None
        view.last_seq = seq
        for fold in (JobFold, MeasurementFold, DataWorkerFold, PodFold, LearningFold, CostFold):
            fold(view, self._evidence[message.job], seq, time_s).fold(message)
        self._evidence[message.job].revisions.note(message, seq)
        return view

    def skip(self, seq: int) -> None:
        """Pass over an event of a forgotten job."""
        self.last_seq = max(self.last_seq, seq)

    def forget(self, job: str) -> None:
        """Drop a job whose events are about to age out."""
        for known in (self.jobs, self.history, self._evidence):
            known.pop(job, None)

    def clear(self) -> None:
        """Forget everything, before the stream is read again from its first event on."""
        self.last_seq = self.strangers = 0
        for known in (self.jobs, self.history, self._evidence):
            known.clear()

    def readable(self, reads: Reads) -> list[views.JobView]:
        """Return the views of the jobs of the teams that may be read."""
        return [view for view in self.jobs.values() if reads(view.team)]

    def readable_history(self, reads: Reads) -> list[PastJob]:
        """Return the past jobs that warm start reads, of the teams that may be read."""
        names = {view.name for view in self.readable(reads)}
        return [past for past in self.history.values() if past.job in names]

    def last_facts(self, job: str) -> tuple[JobCompleted | None, JobFinished | None]:
        """Return the events by which the dispatcher and the actuator closed a job."""
        evidence = self._evidence[job]
        return evidence.completed, evidence.finished

    def revisions(self, job: str) -> Revisions:
        """Return the revisions of the parts of a job."""
        return self._evidence[job].revisions

    def returns(self, job: str) -> list[Returned]:
        """Return how the job's ledger returned to checkpoints, as far as the log reaches."""
        return self._evidence[job].returns

    def _submit(self, message: wire.JobSubmitted, seq: int, time_s: float, trace_id: str | None) -> views.JobView:
        view = self.jobs.get(message.job)
        if view is not None:
            return view  # the first submission counts; the gateway accepts no second one
        view = views.JobView(
            name=message.job,
            status="submitted",
            spec=message.spec,
            submitted_at_s=time_s,
            submitted_by=message.submitted_by,
            team=message.team,
            level=message.spec.level,
            guarantee=promise_of(message.spec.program),
            trace_id=trace_id,
            progress=views.Progress(samples_total=message.spec.samples_total),
            phases=[views.Phase("starting", 0, "submitted", time_s)],
            last_seq=seq,
        )
        view.data = views.DataView(message.spec.dataset.growing, last_seq=0)
        if message.spec.dataset.partitioned:
            take(view.data, message.spec.dataset.partitions)
        else:
            view.data.samples = message.spec.dataset.samples
        self.jobs[message.job] = view
        self._evidence[message.job] = Evidence()
        self._evidence[message.job].revisions.note(message, seq)
        return view

    def _record_history(self, message: HistoryRecorded, time_s: float) -> None:
        if message.cancelled:  # no later job starts from its plan
            return
        self.history[message.job] = PastJob(
            message.job,
            time_s,
            message.metadata,
            message.plan,
            message.throughput,
            message.duration_s,
            message.ps_memory_peak_bytes,
            message.samples,
        )

"""Folds of events about data workers: the data queue, their numbers, and the throughput that each number brought."""

from __future__ import annotations

from functools import singledispatchmethod

from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.base import Message
from stretto_messages.pods import DataWorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_wire.rest import views

from .fold import Fold, push


class DataWorkerFold(Fold):
    """Fold of events about data workers and the queue that they fill."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    @fold.register
    def _(self, message: ProfileMeasured) -> None:
        feeding = self.view.feeding
        feeding.queue, feeding.prepared_elsewhere = message.feed, message.prepared_elsewhere
        if message.settled and feeding.decisions and message.feed is not None:
            last = feeding.decisions[-1]
            if (message.feed.lanes > 0) == (last.count > 0):  # else the window began before the pods came or went
                last.throughput = message.throughput

    @fold.register
    def _(self, message: DataWorkersDecided) -> None:
        feeding = self.view.feeding
        measured = self.evidence.measured_settled or self.evidence.measured
        decision = views.DataWorkerDecision(
            time_s=self.time_s,
            version=message.version,
            count=message.count,
            wanted=message.wanted,
            cpu_cores=message.cpu_cores,
            memory_bytes=message.memory_bytes,
            policy=message.policy,
            reasons=message.reasons,
            queue=feeding.queue,
            throughput_before=measured.throughput if measured else None,
        )
        push(feeding.decisions, decision)

    @fold.register
    def _(self, message: DataWorkerReported) -> None:
        pod = self.view.pods.get(message.pod)
        if pod is not None:
            pod.cpu_used_cores, pod.memory_used_bytes = message.cpu_used_cores, message.memory_used_bytes
            pod.batches_per_s = message.batches / message.window_s
            pod.reported_at_s = self.time_s

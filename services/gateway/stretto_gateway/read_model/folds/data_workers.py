"""Folds of events about data workers: the data queue, their numbers, and the throughput that each number brought."""

from __future__ import annotations

from functools import singledispatchmethod
from statistics import fmean

from stretto_core.model.types import DataWorkerLimits, Resources
from stretto_core.planner.tuning_rules import TuningRules
from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.base import Message
from stretto_messages.pods import DataWorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_wire.rest import views

from .fold import Fold, push

WINDOWS = TuningRules().windows
"""Windows on each side of a change by which its effect is told, as the planner judges it."""


class DataWorkerFold(Fold):
    """Fold of events about data workers and the queue that they fill.

    What a number brought is told by the last windows before its data workers serve and the first ones in which all do:
    a store that recovers earlier or later is none of their doing.
    """

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    @fold.register
    def _(self, message: ProfileMeasured) -> None:
        feeding = self.view.feeding
        feeding.queue, feeding.prepared_elsewhere = message.feed, message.prepared_elsewhere
        if not message.settled or message.feed is None:
            return
        fed, lanes = self.evidence.fed, message.feed.lanes
        if (fed.plan_version, fed.lanes) != (message.plan_version, lanes):
            fed.plan_version, fed.lanes = message.plan_version, lanes
            fed.rates.clear()
        push(fed.rates, message.throughput, WINDOWS)
        if not feeding.decisions:
            return
        last = feeding.decisions[-1]
        if lanes == _lanes_of(last):
            if not fed.after and fed.plan_before != fed.plan_version:  # another plan tells nothing of data workers
                last.throughput_before = None
            if len(fed.after) < WINDOWS:
                fed.after.append(message.throughput)
                last.throughput = fmean(fed.after) if len(fed.after) == WINDOWS else None
        elif not fed.after and last.queue is not None and lanes == last.queue.lanes:
            last.throughput_before, fed.plan_before = fmean(fed.rates), fed.plan_version

    @fold.register
    def _(self, message: DataWorkersDecided) -> None:
        feeding = self.view.feeding
        fed = self.evidence.fed
        fed.after.clear()
        fed.plan_before = fed.plan_version
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
            throughput_before=fmean(fed.rates) if fed.rates else None,
        )
        push(feeding.decisions, decision)

    @fold.register
    def _(self, message: DataWorkerReported) -> None:
        pod = self.view.pods.get(message.pod)
        if pod is not None:
            pod.cpu_used_cores, pod.memory_used_bytes = message.cpu_used_cores, message.memory_used_bytes
            pod.batches_per_s = message.batches / message.window_s
            pod.reported_at_s = self.time_s


def _lanes_of(decision: views.DataWorkerDecision) -> int:
    """Return the batches that data workers of a decision prepare at once."""
    each = Resources(decision.cpu_cores, decision.memory_bytes)
    return decision.count * DataWorkerLimits(each).lanes

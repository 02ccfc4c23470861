"""Fold of events into what a job has cost, and what its first plan would have cost for the same samples."""

from __future__ import annotations

import statistics
from functools import singledispatchmethod

from stretto_messages.actuator import JobFailed, JobFinished
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Resources
from stretto_runtime.profile import profile_of
from stretto_wire.rest.views import OVER, Cost

from .fold import Fold, push

HOUR_S = 3600.0
FIRST_RATES = 256


def billed(cost: Cost, until_s: float) -> float:
    """Return what a job has cost up to a time, at its price per hour since it was last billed."""
    return cost.so_far + cost.per_hour * max(0.0, until_s - (cost.until_s or until_s)) / HOUR_S


class CostFold(Fold):
    """Fold of events that change a job's price per hour or tell how far it is; it follows those of its course."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    @fold.register
    def _(self, message: PlanDecided) -> None:
        cost, spending = self.view.cost, self.evidence.spending
        self._bill()
        spending.of_plan = message.cost_per_hour
        if cost.first_plan is None:
            cost.first_plan, cost.first_per_hour, cost.until_s = message.plan, message.cost_per_hour, self.time_s
            spending.first_version, spending.began_s = message.version, self.time_s
        elif message.plan != cost.first_plan:
            spending.changed = True
        if message.kind == "memory" and message.plan.ps_memory_bytes > cost.first_plan.ps_memory_bytes:
            cost.first_lacks_memory = True
        self._price()

    @fold.register
    def _(self, message: DataWorkersDecided) -> None:
        self._bill()
        each = Resources(message.cpu_cores, message.memory_bytes)
        price = profile_of(self.view.spec).prices.cost_per_hour(each)
        self.evidence.spending.of_data_workers = message.count * price
        self.evidence.spending.changed |= message.count > 0
        self._price()

    @fold.register
    def _(self, message: ProfileMeasured) -> None:
        spending = self.evidence.spending
        if message.settled and message.plan_version == spending.first_version and not spending.of_data_workers:
            push(spending.first_rates, message.throughput, FIRST_RATES)

    @fold.register
    def _(self, message: JobProgressed | JobCompleted | JobFinished | JobFailed | JobCancelled) -> None:
        self._bill()
        self._price()

    def _bill(self) -> None:
        """Add what was spent since the last bill; an ended job spends nothing."""
        view, cost = self.view, self.view.cost
        if cost.until_s is not None:
            until_s = self.time_s if view.ended_at_s is None else view.ended_at_s
            cost.so_far, cost.until_s = billed(cost, until_s), max(cost.until_s, until_s)

    def _price(self) -> None:
        view, cost, spending = self.view, self.view.cost, self.evidence.spending
        cost.per_hour = 0.0 if view.status in OVER else spending.of_plan + spending.of_data_workers
        done, started_s = view.progress.samples_done, view.started_at_s
        if started_s is not None:
            until_s = self.time_s if view.ended_at_s is None else view.ended_at_s
            view.progress.mean_samples_per_s = done / (until_s - started_s) if until_s > started_s else None
        if spending.first_rates:
            cost.first_throughput = statistics.median(spending.first_rates)
        if spending.changed and started_s is not None and cost.first_throughput and view.level:
            took_s = max(0.0, started_s - spending.began_s) + done / cost.first_throughput
            cost.as_first_planned, cost.as_first_planned_s = cost.first_per_hour * took_s / HOUR_S, took_s

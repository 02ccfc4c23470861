"""Facts of a job as it was last read, and waiting conditions, for both clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from typing import get_args

from stretto_messages.values import Plan
from stretto_wire.rest import views
from stretto_wire.rest.views import OVER, JobView, PodView, Status

from .. import figures
from ..drawing import cards
from ..errors import PackageMissing, Unusable
from .reading import promoted
from .records import Decision, Forecast, Pareto, PsMemory, plan_text
from .series import Series

DECISIONS_SHOWN = 5
COURSE: tuple[Status, ...] = tuple(status for status in get_args(Status) if status not in ("failed", "cancelled"))
"""States of a job that goes well, in their order."""
Until = Status | Collection[Status] | Callable[[JobView], bool] | None
"""Condition to wait for: a state, of which a later one counts too; one of some states; or any. None: the job's end."""


def reached(until: Until) -> Callable[[JobView], bool]:
    """Return the test of a condition. Raises Unusable for a state that there is not."""
    if until is None:
        return lambda view: view.status in OVER
    if callable(until):
        return until
    wanted = (until,) if isinstance(until, str) else tuple(until)
    if unknown := set(wanted) - set(get_args(Status)):
        raise Unusable(f"until={min(unknown)!r}: give one or some of {', '.join(get_args(Status))}")
    firsts = [COURSE.index(status) for status in wanted if status in COURSE]
    least = min(firsts, default=len(COURSE))
    return lambda view: view.status in wanted or (view.status in COURSE and COURSE.index(view.status) >= least)


def settled(until: Until) -> Callable[[JobView], bool]:
    """Return the test by which a wait ends: the condition holds, or the job is over and it never will."""
    holds = reached(until)
    return lambda view: holds(view) or view.status in OVER


class JobFacts:
    """A job as it was last read. ``view`` has everything that is known about it."""

    def __init__(self, view: JobView) -> None:
        self.view = view

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.view.name

    @property
    def status(self) -> Status:
        """Return the job's state."""
        return self.view.status

    @property
    def state(self) -> str:
        """Return the job's state in words. A state of an incomplete result names what the result lacks."""
        return figures.state(self.status, self.view.ending)

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended."""
        return self.view.status in OVER

    @property
    def plan(self) -> Plan | None:
        """Return the present plan."""
        return self.view.plan

    @property
    def pods(self) -> dict[str, PodView]:
        """Return the pods by name."""
        return self.view.pods

    @property
    def share_done(self) -> float:
        """Return the share of samples that are trained, from 0 to 1."""
        progress = self.view.progress
        return progress.samples_done / progress.samples_total if progress.samples_total else 0.0

    @property
    def cost(self) -> views.Cost:
        """Return what the job has cost, and what its first plan would have cost for the same samples."""
        return self.view.cost

    @property
    def quality(self) -> dict[str, float]:
        """Return loss, AUC and the model's own metrics on held-out samples, by name; empty before an evaluation."""
        return {one.name: one.value for one in self.view.quality}

    @property
    def decisions(self) -> Series[Decision]:
        """Return the decisions, oldest first."""
        return Series(Decision, self._decided())

    def _decided(self) -> Iterator[Decision]:
        found = self.view.decisions
        present = max((each.version for each in found if each.outcome.applied_at_s is not None), default=0)
        for each in found:
            decision = promoted(Decision, each)
            decision.is_final = self.is_over or each.version < present
            yield decision

    @property
    def pareto(self) -> Pareto | None:
        """Return the latest Pareto front."""
        return None if self.view.front is None else promoted(Pareto, self.view.front)

    @property
    def forecast(self) -> Forecast | None:
        """Return the latest forecast of memory."""
        return None if self.view.forecast is None else promoted(Forecast, self.view.forecast)

    @property
    def throughput(self) -> Series[views.ThroughputPoint]:
        """Return the measured throughput over the whole job, thinned evenly where it is long."""
        return Series(views.ThroughputPoint, self.view.throughput)

    @property
    def memory(self) -> Series[PsMemory]:
        """Return the memory of each parameter server over the whole job."""
        points = (PsMemory(one.time_s, one.samples_done, ps) for one in self.view.memory for ps in one.ps)
        return Series(PsMemory, points)

    @property
    def fits(self) -> Series[views.Fit]:
        """Return the history of fits of the throughput model."""
        return Series(views.Fit, self.view.fits)

    @property
    def learning(self) -> Series[views.LearningPoint]:
        """Return the quality on held-out samples."""
        return Series(views.LearningPoint, self.view.learning)

    @property
    def checkpoints(self) -> Series[views.CheckpointView]:
        """Return the checkpoints."""
        return Series(views.CheckpointView, self.view.checkpoints)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.state}, {self.share_done:.1%} done>"

    def _repr_html_(self) -> str:
        return job_card(self)


def job_card(job: JobFacts) -> str:
    """Return a job as a card: progress, plan, throughput against its prediction, and the last decisions."""
    view, progress = job.view, job.view.progress
    heading = f"{job.name}: {job.state}, {job.share_done:.1%} of {progress.samples_total:,} samples"
    told = ", ".join(f"{name} {value:.4f}" for name, value in job.quality.items())
    lines = [f"plan v{view.plan_version}: {plan_text(view.plan)}", view.reason]
    lines += [f"cost {figures.cost(asdict(view.cost))}", f"held-out {told}" if told else ""]
    if job.status == "training":
        lines.insert(1, figures.rate(progress.samples_per_s))
    stretches = [
        cards.Stretch(
            each.outcome.applied_at_s or each.time_s,
            f"v{each.version} {each.kind}: predicted {each.predicted}, brought {each.brought}",
            None if (found := each.throughput_interval) is None else (found.low, found.high),
        )
        for each in job.decisions
    ]
    drawings = [
        cards.bar(job.share_done),
        cards.throughput([(point.time_s, point.throughput) for point in view.throughput], stretches),
    ]
    if shown := job.decisions[-DECISIONS_SHOWN:]:
        columns = ("decision", "plan", "predicted", "brought", "why")
        rows = [(f"v{d.version} {d.kind}", plan_text(d.plan), d.predicted, d.brought, d.in_words) for d in shown]
        drawings.append(cards.table(columns, rows))
    return cards.card(heading, drawings, lines)


def shown(job: JobFacts) -> Callable[[JobFacts], object]:
    """Show a job in a notebook; return the function that updates the same output. Raises PackageMissing.

    Outside a notebook there is no output to update: the job is printed once.
    """
    try:
        from IPython.display import display
    except ImportError:
        raise PackageMissing("ipython", "live()") from None
    handle = display(job, display_id=True)
    return (lambda _: None) if handle is None else handle.update

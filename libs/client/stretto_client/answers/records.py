"""Records of a job that explain and show themselves: decisions, the Pareto front, the forecast of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stretto_messages.base import counted
from stretto_messages.values import Plan, PsForecast
from stretto_wire import document_of
from stretto_wire.rest import views

from .. import figures
from ..drawing import cards, front
from .reading import promoted

ALTERNATIVES_EXPLAINED = 8


@dataclass(frozen=True, slots=True)
class PsMemory:
    """Memory of one parameter server when a forecast was made."""

    time_s: float
    samples_done: int
    ps: PsForecast


def plan_text(plan: Plan | None) -> str:
    """Format a plan in one line."""
    return figures.plan(None if plan is None else document_of(plan))


@dataclass(slots=True)
class Pareto(views.Front):
    """The Pareto front from which a plan was chosen."""

    def drawing(self, chosen: Plan | None = None) -> str:
        """Return the front as SVG. A plan of it may be marked as ``chosen``."""
        return front.drawing(
            [
                front.Point(
                    one.cost_per_hour,
                    one.throughput,
                    f"{one.id}: {plan_text(one.plan)}: {front.amount(one.throughput)} samples/s, "
                    f"{one.cost_per_hour:.4g} an hour",
                    one.plan == chosen,
                )
                for one in self.candidates
            ]
        )

    def _repr_html_(self) -> str:
        return cards.card(self.heading, [self.drawing()])

    @property
    def heading(self) -> str:
        """Return the front in one line."""
        return f"Pareto front: {len(self.candidates)} of {self.plans_considered:,} plans, by {self.algorithm}"


@dataclass(slots=True)
class Forecast(views.Forecast):
    """A forecast of the parameter servers' memory at the job's end."""

    def _repr_html_(self) -> str:
        rows = [
            cards.Memory(
                one.pod,
                one.used_bytes,
                one.limit_bytes,
                one.at_end_bytes,
                (one.at_end_interval_bytes.low, one.at_end_interval_bytes.high),
                "never full" if one.oom_in_s is None else f"full in {figures.seconds(one.oom_in_s)}",
            )
            for one in self.ps
        ]
        return cards.card(f"Memory: {self.action}", [cards.memory(rows)], [self.reason])


@dataclass(slots=True)
class Decision(views.Decision):
    """A decided plan, its basis and its outcome."""

    is_final: bool = False
    """True once no outcome can follow: the job has ended, or a later plan has been applied."""

    @property
    def pareto(self) -> Pareto | None:
        """Return the front from which the plan was chosen, if it was."""
        return None if self.front is None else promoted(Pareto, self.front)

    def why(self) -> str:
        """Return the reasons, the basis, the prediction, the outcome and the plans that were not chosen as text."""
        lines = [f"v{self.version} {self.kind}, {figures.date_and_time(self.time_s)}", *self._why()]
        return "\n".join(lines)

    def _why(self) -> Iterator[str]:
        yield self.in_words
        yield f"plan         {plan_text(self.plan)}"
        if self.previous is not None:
            yield f"instead of   {plan_text(self.previous)}"
        yield from _labelled("why", self.reasons or ("no reason was given",))
        yield f"chosen by    {self.algorithm}; costs {self.cost_per_hour:.3f} an hour"
        if self.round is not None:
            jobs = counted(self.round.jobs, "job")
            yield (
                f"round        {self.round.algorithm} over {jobs}: {self.round.value:.6g}, at most "
                f"{self.round.bound:.6g} is possible (gap {self.round.gap:.3%})"
            )
        if self.warm_start is not None:
            yield from _labelled(
                "past jobs", [f"{m.job}, similarity {m.similarity:.3f}" for m in self.warm_start.matches]
            )
        if self.measured is not None:
            at = f"at plan v{self.measured.plan_version}"
            yield f"measured     {figures.rate(self.measured.throughput)} {at}, step {self.measured.step_time_s:.4f} s"
        if self.fitted is not None:
            unknown = f"; not identified yet: {', '.join(self.fitted.unidentified)}" if self.fitted.unidentified else ""
            yield (
                f"model        {self.fitted.form} form, RMSLE {self.fitted.rmsle:.3f} over "
                f"{counted(self.fitted.points, 'window')}{unknown}"
            )
        if self.forecast is not None:
            yield f"forecast     {self.forecast.action}: {self.forecast.reason}"
        yield f"predicted    {self.predicted}"
        yield f"brought      {self.brought}"
        shown = self.alternatives[:ALTERNATIVES_EXPLAINED]
        yield from _labelled("instead", [f"{plan_text(one.plan)}: {one.why_not}" for one in shown])
        if (more := len(self.alternatives) - len(shown)) > 0:
            yield f"             … and {more} more"

    @property
    def predicted(self) -> str:
        """Return the prediction with its 90 % interval."""
        if self.throughput is None:
            return "–"
        found = self.throughput_interval
        interval = figures.interval(None if found is None else document_of(found))
        reads = "" if self.reads_per_step is None else f", {self.reads_per_step:.0f} reads a step"
        return f"{figures.rate(self.throughput)} {interval}".strip() + reads

    @property
    def brought(self) -> str:
        """Return the measured outcome."""
        if (found := self.outcome.throughput) is None:
            if not self.is_final:
                return "not measured yet"
            if self.outcome.applied_at_s is None:
                return "never measured: its plan was not applied"
            return "never measured: its plan ended before a settled window"
        inside = {True: ", inside the interval", False: ", outside the interval", None: ""}[
            self.outcome.inside_interval
        ]
        gain = "" if self.outcome.gain is None else f" ({figures.percent(self.outcome.gain - 1)})"
        read = self.outcome.reads_per_step
        return f"{figures.rate(found)}{gain}{inside}" + ("" if read is None else f", {read:.0f} reads a step")

    def _repr_html_(self) -> str:
        drawn = [] if (found := self.pareto) is None else [found.drawing(self.plan)]
        return cards.card(f"Decision v{self.version}: {self.kind}", drawn, preformatted=self.why())


def _labelled(label: str, lines: list[str] | tuple[str, ...]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{label if number == 0 else '':<13}{line}"

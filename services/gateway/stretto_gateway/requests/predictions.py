"""Predictions of the planner: the first plan of a submission, and a live job under another plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto_bus.faults import CallTimeout
from stretto_messages.base import three_digits
from stretto_messages.planner import PlanPrediction, PredictPlan, PredictPlanReply, PreviewPlanReply
from stretto_messages.values import Interval, MeasuredConfiguration, Plan, Resources
from stretto_runtime.profile import profile_of
from stretto_wire.contract.submission import PreviewPlan
from stretto_wire.errors import WireError
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.rest.answers import (
    FirstPlan,
    Prediction,
    Preview,
    PreviewFinding,
)
from stretto_wire.rest.views import JobView

from ..problems import Problem
from . import checks
from .bus_roles import Asker
from .cluster import Room

_SIZES = {
    "workers": "workers",
    "ps": "parameter servers",
    "worker_cpu_cores": "cores a worker",
    "ps_cpu_cores": "cores a server",
}
"""Names of the fields of a plan that its speed depends on."""


async def first_plan(asker: Asker, timeout_s: float, spec: JobSpec, team: str) -> PreviewPlanReply | None:
    """Return the plan with which a job would start, and the jobs from whose history the plan comes.

    None if the planner does not answer, or if no message has room for the specification.
    """
    try:
        found = await asker.call(PreviewPlan(spec=spec, team=team), timeout_s)
    except (CallTimeout, WireError):
        return None
    assert isinstance(found, PreviewPlanReply)
    return found


def preview(
    spec: JobSpec, refusals: Sequence[Problem], plan: PreviewPlanReply | None, room: Callable[[Resources], Room]
) -> Preview:
    """Return the outcome of a submission from the reasons against it, its first plan and the room in the cluster."""
    profile, first = profile_of(spec), None
    if plan is not None:
        found = room(profile.resources(plan.plan))
        first = FirstPlan(
            kind=plan.kind,
            plan=plan.plan,
            reasons=plan.reasons,
            matches=plan.matches,
            cost_per_hour=plan.cost_per_hour,
            throughput=plan.throughput,
            duration_s=spec.samples_total / plan.throughput if plan.throughput else None,
            fits=found.fits,
            room=found.words,
        )
    return Preview(
        job=spec.name,
        accepted=not refusals,
        findings=[
            PreviewFinding(
                status=refusal.status,
                kind=refusal.kind,
                detail=refusal.detail,
                field=one.field,
                value=one.value,
                remedy=one.remedy,
            )
            for refusal in refusals
            for one in refusal.errors
        ],
        spec=spec,
        cost_per_hour_min=profile.cost_per_hour(profile.limits.low),
        cost_per_hour_max=profile.cost_per_hour(profile.limits.high),
        first_plan=first,
    )


async def what_if(
    asker: Asker, timeout_s: float, view: JobView, plan: Plan, room: Callable[[Resources], Room], now_s: float
) -> Prediction:
    """Return how a live job would go on under a plan. Raises Problem 409 without a model, and Fault."""
    previous = view.plan  # the plan that `plan` varies: the view may show another one when the answer comes
    found = await asker.call(PredictPlan(job=view.name, plan=plan), timeout_s)
    assert isinstance(found, PredictPlanReply)
    if found.prediction is None:
        text = f"{view.name} has no fitted model yet"
        raise checks.conflict(view, "no-model", text, "ask again after its first measured windows (about 15 s)")
    needs = profile_of(view.spec).resources(found.prediction.plan)
    return predicted(view, previous, found.prediction, room(needs), now_s)


def predicted(view: JobView, previous: Plan | None, found: PlanPrediction, room: Room, now_s: float) -> Prediction:
    """Return a prediction with what it means for the rest of the job: its end, its cost, its servers' memory."""
    left = view.progress.samples_total - view.progress.samples_done - view.data.given_up
    left_s = max(0, left) / found.throughput if found.throughput > 0 and not view.data.growing else None
    interval = found.throughput_interval
    ends = None
    if left_s is not None and interval.low > 0:
        ends = Interval(low=now_s + max(0, left) / interval.high, high=now_s + max(0, left) / interval.low)
    sizes = view.model.measured if view.model is not None else ()
    memory_bytes = None
    if view.forecast is not None and len(view.forecast.ps) == found.plan.ps:
        # the forecast holds only for its own number of servers: it does not tell memory of rows from the rest
        memory_bytes = max(ps.at_end_bytes for ps in view.forecast.ps)
    return Prediction(
        job=view.name,
        plan=found.plan,
        previous=previous,
        step_time_s=found.step_time_s,
        step_time_interval_s=found.step_time_interval_s,
        throughput=found.throughput,
        throughput_interval=interval,
        throughput_now=view.progress.samples_per_s,
        cost_per_hour=found.cost_per_hour,
        cost_to_end=None if left_s is None else found.cost_per_hour * left_s / 3600,
        ends_at_s=None if left_s is None else now_s + left_s,
        ends_at_interval_s=ends,
        ps_memory_at_end_bytes=memory_bytes,
        model_plan_version=found.plan_version,
        fits=room.fits,
        room=room.words,
        extrapolated=bool(beyond := _beyond(found.plan, sizes)),
        measured=beyond or (_measured(sizes) if sizes else ""),
    )


def _beyond(plan: Plan, sizes: Sequence[MeasuredConfiguration]) -> str:
    """Say what of a plan is outside the measured sizes, and how far; empty: nothing."""
    told = list[str]()
    for name, noun in _SIZES.items() if sizes else ():
        asked, (least, most) = getattr(plan, name), _span(sizes, name)
        if not least <= asked <= most:
            times = f", {three_digits(asked / most)} times the most" if asked > most else ""
            told.append(f"{asked:g} {noun} asked, {_range(least, most)} measured{times}")
    return f"an extrapolation: {'; '.join(told)}" if told else ""


def _measured(sizes: Sequence[MeasuredConfiguration]) -> str:
    (fewest, most), (least, servers) = _span(sizes, "workers"), _span(sizes, "ps")
    workers = f"{_range(fewest, most)} {'worker' if most == 1 else 'workers'}"
    return f"within what was measured: {workers}, {_range(least, servers)} parameter server{'s' * (servers != 1)}"


def _span(sizes: Sequence[MeasuredConfiguration], name: str) -> tuple[float, float]:
    there = [getattr(each, name) for each in sizes]
    return min(there), max(there)


def _range(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"

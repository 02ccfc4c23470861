"""The first plan of a job that does not exist yet: what the machines would propose, without any trace of it."""

from __future__ import annotations

from stretto_messages.planner import HistoryMatched, PlanProposed, PreviewPlanReply
from stretto_messages.values import KnownModel, Plan

from stretto_core.machine import Action, Emit
from stretto_core.model.throughput import Configuration, Inputs, is_understood, predicted_step_time_s, throughput
from stretto_core.model.types import JobOpened
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine


def preview(history: HistoryMachine, fresh: PlanMachine, opened: JobOpened, now: float) -> PreviewPlanReply:
    """Return the proposal for a new job. ``fresh`` is a machine of no job; it is of no use afterwards."""
    matched = next(fact for fact in _facts(history.handle(opened, now)) if isinstance(fact, HistoryMatched))
    facts = [*_facts(fresh.handle(opened, now)), *_facts(fresh.handle(matched, now))]
    proposed = next(fact for fact in facts if isinstance(fact, PlanProposed))
    warm = proposed.kind == "warm-start"
    return PreviewPlanReply(
        kind=proposed.kind,
        plan=proposed.plan,
        cost_per_hour=proposed.cost_per_hour,
        reasons=proposed.reasons,
        matches=matched.matches if warm and matched.plan is not None else (),
        throughput=_throughput(matched.model, proposed.plan, opened.profile.batch_size),
    )


def _facts(actions: list[Action]) -> list[object]:
    return [action.fact for action in actions if isinstance(action, Emit)]


def _throughput(model: KnownModel | None, plan: Plan, batch_size: int) -> float | None:
    if model is None or not is_understood(model) or plan.stages > 1:
        return None
    x = Inputs.of([Configuration.of(plan, batch_size)])
    return float(throughput(predicted_step_time_s(model.form, model.coefficients, model.overlap, x), x)[0])

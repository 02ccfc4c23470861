"""The planner: one machine per job, which proposes its plans, and one for the cluster, which remembers past jobs."""

from __future__ import annotations

from typing import ClassVar

from stretto_core.algorithms import PARETO
from stretto_core.model.types import JobOpened
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.preview import preview
from stretto_core.planner.state import HistoryState, PlanState
from stretto_messages.base import Message
from stretto_messages.planner import PredictPlan, PredictPlanReply
from stretto_runtime import CLUSTER, Meta, Service
from stretto_runtime.algorithms import algorithm
from stretto_runtime.profile import opened, profile_of
from stretto_wire.contract.submission import JobSubmitted, PreviewPlan

from stretto_planner.settings import PlannerSettings

PREVIEW = "preview"
"""The name of a job that does not exist, within its own machine only."""


class Planner(Service[PlannerSettings, PlanState | HistoryState, PlanMachine | HistoryMachine]):
    """Warm start, what to measure next, candidates on the Pareto front; the history of finished jobs."""

    name = "planner"
    version = PlanMachine.version + HistoryMachine.version - 1  # both began at 1; it grows with either
    settings_type = PlannerSettings
    state_types: ClassVar[dict[str, type]] = {"job": PlanState, "cluster": HistoryState}
    late_imports = ("scipy.special",)

    def __init__(self, settings: PlannerSettings) -> None:
        super().__init__(settings)
        self._algorithm = algorithm(PARETO, settings.algorithm, "STRETTO_PLANNER_ALGORITHM")

    def machine(self, key: str, state: PlanState | HistoryState | None) -> PlanMachine | HistoryMachine:
        if key == CLUSTER:
            assert not isinstance(state, PlanState)
            return HistoryMachine(state, self.settings.history())
        assert not isinstance(state, HistoryState)
        return PlanMachine(state, self.settings.machine(), self._algorithm, self.settings.algorithm)

    def answer(self, query: Message, machine: PlanMachine | HistoryMachine | None) -> Message:
        """Return a job's speed under another plan, or the plan that a job would start with if it came now."""
        if isinstance(query, PredictPlan):
            known = isinstance(machine, PlanMachine)
            return machine.predict(query) if known else PredictPlanReply(job=query.job, answer="unknown")
        assert isinstance(query, PreviewPlan)
        history, fresh = machine or self.machine(CLUSTER, None), self.machine(PREVIEW, None)
        assert isinstance(history, HistoryMachine)
        assert isinstance(fresh, PlanMachine)
        opened = JobOpened(PREVIEW, profile_of(query.spec), query.team)
        return preview(history, fresh, opened, self.server_now())

    def to_event(self, message: Message, meta: Meta) -> Message | JobOpened:
        return opened(message) if isinstance(message, JobSubmitted) else message

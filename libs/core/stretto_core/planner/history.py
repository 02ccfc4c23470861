"""The machine that remembers past jobs and finds those similar to a new one (DLRover-RM Algorithm 1)."""

from __future__ import annotations

from stretto_messages.planner import HistoryMatched, HistoryRecorded
from stretto_messages.values import Match

from stretto_core.machine import Action, Emit
from stretto_core.model.types import JobOpened
from stretto_core.planner.state import HistorySettings, HistoryState
from stretto_core.planner.warmstart import most_similar, smoothed_plan

HistoryEvent = HistoryRecorded | JobOpened


class HistoryMachine:
    """Keeps the configuration database D of Algorithm 1; one for the whole cluster."""

    version = 1

    def __init__(self, state: HistoryState | None = None, settings: HistorySettings | None = None) -> None:
        self.state = state or HistoryState()
        self.settings = settings or HistorySettings()

    def handle(self, event: HistoryEvent, now: float) -> list[Action]:
        """Remember a past job, or match a new one."""
        match event:
            case HistoryRecorded(job=job):
                self.state.past.pop(job, None)
                self.state.past[job] = event
                while len(self.state.past) > self.settings.jobs_kept:
                    del self.state.past[next(iter(self.state.past))]
                return []
            case JobOpened():
                return [Emit(self._match(event))]
            case _:
                return []

    def _match(self, event: JobOpened) -> HistoryMatched:
        settings, profile = self.settings, event.profile
        similar = most_similar(
            profile.metadata,
            self.state.past.values(),
            count=settings.similar_jobs,
            smoothing=settings.smoothing,
            similarity_min=settings.similarity_min,
        )
        return HistoryMatched(
            job=event.job,
            metadata=dict(profile.metadata),
            matches=tuple(
                Match(
                    job=job.past.job,
                    similarity=min(job.similarity, 1.0),  # sums of shares may exceed 1 by rounding
                    weight=min(job.weight, 1.0),
                    plan=job.past.plan,
                    throughput=job.past.throughput,
                    features=job.features,
                )
                for job in similar
            ),
            smoothing=settings.smoothing,
            plan=smoothed_plan(similar, profile.limits),
            model=next((job.past.model for job in reversed(similar) if job.past.model is not None), None),
        )

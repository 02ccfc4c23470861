"""The machine that remembers past jobs and finds for a new one those that resemble it (DLRover-RM Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_core.jobs import HistoryMatched, HistoryRecorded, JobSubmitted
from stretto_core.machine import Action, Emit, as_it_was
from stretto_core.planner.warmstart import PastJob, most_similar, smoothed_plan


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """``similar_jobs`` is Algorithm 1's k, ``smoothing`` Eq. 10's mu; jobs below ``threshold`` do not count."""

    similar_jobs: int = 5
    smoothing: float = 0.5
    threshold: float = 0.3
    jobs_kept: int = 500


@dataclass(slots=True)
class HistoryState:
    """Past jobs by name, oldest first."""

    past: dict[str, PastJob] = field(default_factory=dict[str, PastJob])


class HistoryMachine:
    """The configuration database D of Algorithm 1; one for the whole cluster."""

    version = 2
    migrate = staticmethod(as_it_was)  # until version 1 no past job's model was kept

    def __init__(self, state: HistoryState | None = None, settings: HistorySettings | None = None) -> None:
        self.state = state or HistoryState()
        self.settings = settings or HistorySettings()

    def handle(self, event: object, now: float) -> list[Action]:
        """Remember a past job, or match a new one."""
        if isinstance(event, HistoryRecorded):
            self.state.past.pop(event.past.job, None)
            self.state.past[event.past.job] = event.past
            while len(self.state.past) > self.settings.jobs_kept:
                del self.state.past[next(iter(self.state.past))]
            return []
        return [Emit(self._match(event))] if isinstance(event, JobSubmitted) else []

    def _match(self, event: JobSubmitted) -> HistoryMatched:
        settings, profile = self.settings, event.profile
        similar = most_similar(
            profile.metadata,
            self.state.past.values(),
            count=settings.similar_jobs,
            smoothing=settings.smoothing,
            threshold=settings.threshold,
        )
        return HistoryMatched(
            job=event.job,
            metadata=dict(profile.metadata),
            matches=tuple(similar),
            smoothing=settings.smoothing,
            plan=smoothed_plan(similar, profile.limits),
            model=next((job.past.model for job in reversed(similar) if job.past.model is not None), None),
        )

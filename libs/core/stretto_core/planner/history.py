"""The machine that remembers past jobs and finds those similar to a new one (DLRover-RM Algorithm 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from stretto_messages.planner import HistoryMatched, HistoryRecorded
from stretto_messages.values import TYPES_MAX, Match

from stretto_core.machine import Action, Emit
from stretto_core.model.types import JobOpened
from stretto_core.planner.state import HistorySettings, HistoryState
from stretto_core.planner.warmstart import SimilarJob, known_speeds, most_similar, smoothed_plan

HistoryEvent = HistoryRecorded | JobOpened


class HistoryMachine:
    """Keeps the configuration database D of Algorithm 1; one for the whole cluster.

    A job starts from past jobs of its own team. Those of others are not its team's to read, and their pods may have
    reported what they liked.
    """

    version = 2

    def __init__(self, state: HistoryState | None = None, settings: HistorySettings | None = None) -> None:
        self.state = state or HistoryState()
        self.settings = settings or HistorySettings()

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of an earlier version, which told speeds of types that a job may not have, too."""
        return state

    def handle(self, event: HistoryEvent, now: float) -> list[Action]:
        """Remember a past job, or match a new one."""
        match event:
            case HistoryRecorded(job=job):
                self.state.past.pop(job, None)
                self.state.past[job] = event
                while len(self.state.past) > self.settings.jobs_kept:
                    self._forget_one()
                return []
            case JobOpened():
                return [Emit(self._match(event))]
            case _:
                return []

    def _forget_one(self) -> None:
        """Forget the oldest job of the team that has most: no team's many jobs push out the few of another.

        Of cancelled jobs the team keeps as many as there may be types to measure: the rest is for completed ones.
        """
        past = self.state.past
        most = max(Counter(each.team or "" for each in past.values()).items(), key=lambda item: item[1])[0]
        own = [job for job, each in past.items() if (each.team or "") == most]
        cancelled = [job for job in own if past[job].cancelled]
        del past[(cancelled if len(cancelled) > TYPES_MAX else own)[0]]

    def _match(self, event: JobOpened) -> HistoryMatched:
        settings, profile = self.settings, event.profile
        of_team = [past for past in self.state.past.values() if past.team in (None, event.team)]

        def closest(past: Iterable[HistoryRecorded], count: int) -> list[SimilarJob]:
            return most_similar(
                profile.metadata,
                past,
                count=count,
                smoothing=settings.smoothing,
                similarity_min=settings.similarity_min,
            )

        similar = closest((past for past in of_team if not past.cancelled), settings.similar_jobs)
        speeds = known_speeds(closest((past for past in of_team if past.speeds), settings.jobs_kept))
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
            speeds=tuple(each for each in speeds if profile.asks_for(each.device))[:TYPES_MAX],
        )

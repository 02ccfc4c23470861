"""Submissions of jobs: the reasons against one, in one order, whether a user submits the job or asks for a preview."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

import stretto_wire as wire
from stretto_messages.base import DEFAULT_TEAM
from stretto_runtime.spent_names import DamagedNames
from stretto_wire.contract.registry import STATE

from ..problems import Problem
from ..read_model.follower import Follower
from ..read_model.job_views import JobViews, not_ready
from ..settings import GatewaySettings
from . import checks
from .bus_roles import Publisher
from .team_bytes import TeamBytes

STATE_FULL_AT = 0.9
"""Used share of the bucket above which no new job is taken: the state of the jobs that exist needs the rest."""


class Submissions:
    """Submissions, judged by the projection, the names of past jobs, the settings and what is used, and published.

    ``shares``: used shares of the streams, by name.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        follower: Follower,
        views: JobViews,
        team_bytes: TeamBytes,
        shares: Mapping[str, float],
        publisher: Publisher,
    ) -> None:
        self._settings, self._follower, self._views = settings, follower, views
        self._jobs = follower.projection.jobs
        self._team_bytes, self._shares, self._publisher = team_bytes, shares, publisher
        self._admitting = asyncio.Lock()

    async def submit(self, spec: wire.JobSpec, by: str, trace: str = "", team: str = DEFAULT_TEAM) -> tuple[bool, int]:
        """Submit a job; returns whether the job is new, and its sequence. ``trace`` is the caller's ``traceparent``.

        Raises Problem: the first of the ``refusals``.
        """
        message = wire.JobSubmitted(job=spec.name, spec=spec, submitted_by=by, team=team)
        for problem in self.refusals(message):
            raise problem
        if spec.name not in self._jobs and (seq := await self._publish(message, trace)) is not None:
            return True, seq
        await self._follower.until_shown(lambda: spec.name in self._jobs)
        self._check_name(message)  # another replica may have taken another job of this name meanwhile
        return False, self._views.view(spec.name).last_seq

    def refusals(self, message: wire.JobSubmitted) -> Iterator[Problem]:
        """Yield the reasons against a submission, first the one for which it is refused; none for a repeated
        submission."""
        size_bytes = None
        try:
            # a specification beyond the wire's bounds is the caller's mistake, whoever has the name
            size_bytes = len(wire.encode(message))
        except wire.WireError as error:
            yield Problem.of_wire(error)
        view, spec, team = self._jobs.get(message.job), message.spec, message.team
        if view is not None and (view.team, view.spec) == (team, spec):
            return
        for check in (
            lambda: self._check_name(message),
            lambda: None if size_bytes is None else checks.check_size(size_bytes, self._settings.spec_bytes),
            lambda: checks.check_allowed(spec, message.submitted_by, self._settings.allowed, self._jobs),
            lambda: checks.check_entry(spec) if self._settings.code_is_here else None,
            lambda: checks.check_object(spec),
            lambda: checks.check_extended(spec, self._settings.extended_resources),
            lambda: checks.check_devices(spec, self._settings.device_types),
            lambda: None if size_bytes is None else self._team_bytes.check(size_bytes, team),
            lambda: checks.check_state(self._shares.get(STATE, 0.0), STATE_FULL_AT),
            lambda: self._check_quota(message),
        ):
            try:
                check()
            except Problem as problem:
                yield problem

    async def _publish(self, message: wire.JobSubmitted, trace: str) -> int | None:
        """Publish a submission and show it; returns its sequence, or None if the name has a job already.

        Where quotas bound live jobs, submissions wait for each other: each is counted before the next is judged. With
        several replicas, every other replica may let one more job in at the same time.
        """
        async with self._admitting if self._settings.quotas else contextlib.nullcontext():
            self._check_quota(message)
            # the server accepts only the first submission of a name, whichever replica sends it
            seq = await self._publisher.publish(message, f"gateway:{message.job}:submitted", 0, trace)
            if seq is not None:
                await self._follower.until_shown(lambda: self._follower.projection.last_seq >= seq)
        return seq

    def _check_name(self, message: wire.JobSubmitted) -> None:
        """Check that the name belongs to no other job.

        Raises Problem: 409 if the name has another team's job or another specification, or had a job long ago; 503
        while the jobs, or the names of past ones, are unknown.
        """
        name, view = message.job, self._jobs.get(message.job)
        if view is not None and view.team != message.team:
            raise checks.others_name(name)
        if view is not None and view.spec != message.spec:
            raise checks.name_taken(name, view)
        if view is not None:
            return
        if lacks := self._follower.lacks:
            raise not_ready(name, lacks)
        try:
            taken = self._follower.retention.is_taken(name)
        except DamagedNames as error:
            raise checks.names_damaged(name, str(error)) from error
        if taken:
            raise checks.name_taken(name)

    def _check_quota(self, message: wire.JobSubmitted) -> None:
        """Check that the team may have another live job, of this priority. Raises Problem 409 or 422."""
        checks.check_quota(message.spec, message.team, self._settings.quotas, self._jobs)

"""The reasons against a submission, in one order, whether somebody submits the job or only asks for a preview."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import stretto_wire as wire
from stretto_messages.base import Message
from stretto_messages.gateway import DataArrived, DataWorkersRequested, PlanRequested
from stretto_runtime.settings import DAY_S
from stretto_wire.registry import STATE
from stretto_wire.rest.views import JobView

from ..access.buckets import Buckets
from ..problems import Problem
from ..settings import GatewaySettings
from ..streams.retention import Retention
from ..streams.spent_names import DamagedNames
from . import checks

CHANGES = (PlanRequested, DataWorkersRequested, DataArrived)
"""Events that users cause as often as they like."""
STATE_FULL_AT = 0.9
"""No new job is taken above it: what the services save of the jobs that there are needs the rest."""


class Submissions:
    """Judges submissions by the jobs that there are, the names of past ones, the settings, and what is used already.

    ``lacks`` says what the gateway still lacks to know all jobs (empty: nothing), ``shares`` how full streams are.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        jobs: Mapping[str, JobView],
        retention: Retention,
        shares: Mapping[str, float],
        lacks: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._settings, self._jobs, self._retention = settings, jobs, retention
        self._shares, self._lacks, self._clock = shares, lacks, clock
        self._bytes = Buckets(settings.team_bytes_per_day / DAY_S, settings.team_bytes_per_day)
        """Bytes of events that each team may still cause, by all events that were charged."""

    def refusals(self, message: wire.JobSubmitted) -> Iterator[Problem]:
        """Find the reasons against a submission one by one, the one that refuses it first; none for a repeated one."""
        size_bytes = None
        try:
            # a specification beyond the wire's bounds is the caller's, whoever has the name
            size_bytes = len(wire.encode(message))
        except wire.WireError as error:
            yield Problem.of_wire(error)
        view, spec, team = self._jobs.get(message.job), message.spec, message.team
        if view is not None and (view.team, view.spec) == (team, spec):
            return
        for check in (
            lambda: self.check_name(message),
            lambda: None if size_bytes is None else checks.check_size(size_bytes, self._settings.spec_bytes),
            lambda: checks.check_allowed(spec, message.submitted_by, self._settings.allowed, self._jobs),
            lambda: checks.check_extended(spec, self._settings.extended_resources),
            lambda: None if size_bytes is None else self.check_bytes(size_bytes, team),
            lambda: checks.check_state(self._shares.get(STATE, 0.0), STATE_FULL_AT),
            lambda: self.check_quota(message),
        ):
            try:
                check()
            except Problem as problem:
                yield problem

    def check(self, message: wire.JobSubmitted) -> None:
        """Check that the job may be submitted now. Raises Problem: the first of all reasons against it."""
        for problem in self.refusals(message):
            raise problem

    def check_name(self, message: wire.JobSubmitted) -> None:
        """Check that the name belongs to no other job.

        Raises Problem: 409 if it has another team's job or another specification, or had a job long ago; 503 while the
        jobs, or the names of past ones, are unknown.
        """
        name, view = message.job, self._jobs.get(message.job)
        if view is not None and view.team != message.team:
            raise checks.others_name(name)
        if view is not None and view.spec != message.spec:
            raise checks.name_taken(name, view)
        if view is not None:
            return
        if lacks := self._lacks():
            raise checks.not_ready(name, lacks)
        try:
            taken = self._retention.is_taken(name)
        except DamagedNames as error:
            raise checks.names_damaged(name, str(error)) from error
        if taken:
            raise checks.name_taken(name)

    def check_quota(self, message: wire.JobSubmitted) -> None:
        """Check that the team may have one live job more, of this priority. Raises Problem 409 or 422."""
        checks.check_quota(message.spec, message.team, self._settings.quotas, self._jobs)

    def check_bytes(self, size_bytes: int, team: str) -> None:
        """Check that the team may cause an event of this size now. Raises Problem 409."""
        wait_s = self._bytes.wait_s(team, self._clock(), size_bytes)
        if wait_s > 0:
            raise checks.bytes_used(team, wait_s)

    def charge(self, message: Message, time_s: float) -> None:
        """Count the bytes of a change against the team that asked for it, as every replica does."""
        if isinstance(message, wire.JobSubmitted):
            self._bytes.charge(message.team, time_s, len(wire.encode(message)))
        elif isinstance(message, CHANGES) and (view := self._jobs.get(message.job)) is not None:
            self._bytes.charge(view.team, time_s, len(wire.encode(message)))

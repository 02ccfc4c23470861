"""The cluster as the arbiter describes it: what is held and free, who waits, and what each team has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from stretto_bus.faults import CallTimeout
from stretto_core.model.teams import OTHERS, Quotas, TeamQuota, quota_of
from stretto_messages.arbiter import Amount, GetCluster, GetClusterReply
from stretto_messages.base import GIB, counted, three_digits
from stretto_messages.values import NOTHING, Resources, extended_of, shortage, total
from stretto_wire.jobspec.devices import DeviceTypeSpec
from stretto_wire.rest.answers import (
    ClusterView,
    DeviceView,
    HolderView,
    TeamView,
    UnplaceableView,
    WaitingView,
)
from stretto_wire.rest.views import OVER, JobView

from ..read_model.projection import Reads
from .bus_roles import Asker

T = TypeVar("T")
HOLDERS_SHOWN = 200
"""Number of holders in an answer (taste: a page that is looked through)."""
FRESH_S = 1.0
"""Age at which an answer about the cluster is too old, and the question is asked again."""


class Shared(Generic[T]):
    """A question that is asked at most once in ``FRESH_S`` for each subject: all who ask meanwhile get the same
    answer."""

    def __init__(self, ask: Callable[[str], Coroutine[Any, Any, T]], clock: Callable[[], float]) -> None:
        self._ask, self._clock = ask, clock
        self._asked: dict[str, tuple[float, asyncio.Task[T]]] = {}
        """The latest question about each subject, and when it was asked."""

    async def answer(self, subject: str = "") -> T:
        """Return the answer, or raise what asking raised."""
        now_s = self._clock()
        self._asked = {about: one for about, one in self._asked.items() if 0 <= now_s - one[0] < FRESH_S}
        if subject not in self._asked:
            self._asked[subject] = now_s, asyncio.create_task(self._ask(subject))
        return await asyncio.shield(self._asked[subject][1])


class Arbiter:
    """The arbiter's answers about the cluster. The arbiter is asked seldom, since it alone decides for all jobs."""

    def __init__(self, asker: Asker, timeout_s: float, clock: Callable[[], float]) -> None:
        self._asker, self._timeout_s = asker, timeout_s
        self._pages = Shared(self._ask, clock)

    async def cluster(self) -> GetClusterReply:
        """Return the cluster with all holders. Raises Fault."""
        found = await self._pages.answer()
        holders, more = list(found.holders), found.more
        while more:
            page = await self._pages.answer(holders[-1].job)
            holders, more = [*holders, *page.holders], page.more and bool(page.holders)
        return replace(found, holders=tuple(holders), more=False)

    async def _ask(self, after: str) -> GetClusterReply:
        found = await self._asker.call(GetCluster(after=after), self._timeout_s)
        assert isinstance(found, GetClusterReply)
        return found

    async def cluster_if_answered(self) -> GetClusterReply | None:
        """Return the cluster with all holders; None if the arbiter does not answer."""
        try:
            return await self.cluster()
        except CallTimeout:
            return None


class Room(NamedTuple):
    """Room for a plan now (None: unknown), and the reason, in words."""

    fits: bool | None
    words: str


def room_for(found: GetClusterReply | None, quotas: Quotas, team: str, wanted: Resources, job: str = "") -> Room:
    """Return whether the cluster and the team's quota have room for a plan, by the arbiter's rules.

    ``wanted``: all resources of the plan. ``job``: a job that runs, which keeps what it holds; empty: one that would
    start. Data workers give way to a plan. Without an answer of the arbiter nothing is known.
    """
    if found is None:
        return Room(None, "unknown: the arbiter does not answer")
    held = {holder.job: _resources(holder.held) for holder in found.holders}
    of_team = total(held[holder.job] for holder in found.holders if holder.team == team)
    free = total([_resources(found.free), *(_resources(holder.data_held) for holder in found.holders)])
    more = shortage(wanted, held.get(job, NOTHING))
    if more == NOTHING:
        return Room(True, "fits: it needs no more than the job holds")
    capacity, quota = _resources(found.capacity), quota_of(quotas, team)
    needs = f"it needs {_in_words(more)}{' more' if job else ''}"
    if (never := shortage(wanted, capacity)) != NOTHING:
        has = _in_words(capacity, never)
        return Room(False, f"cannot fit: the job would need {_in_words(wanted, never)}, the whole cluster has {has}")
    if (lacks := shortage(more, free)) != NOTHING:
        return Room(False, f"does not fit now: {needs}, {_in_words(free, more)} are free: {_in_words(lacks)} lack")
    waiting = sum(_resources(each.least).fits(capacity) for each in found.waiting)
    if job and waiting:
        return Room(False, f"does not fit now: {counted(waiting, 'waiting job')} may start before a running one grows")
    if (over := shortage(of_team + more, quota.limit(capacity))) == NOTHING:
        return Room(True, f"fits: {needs}, {_in_words(free, more)} are free")
    beyond = f"{_in_words(over)} beyond the quota of the team {team}, which holds {_in_words(of_team, over)}"
    if quota.borrow and not found.waiting:
        return Room(True, f"fits: {needs}, {beyond} and borrows them until another team asks for its own")
    return Room(False, f"does not fit: {needs}, {beyond} and may not borrow")


def _in_words(amount: Resources, of: Resources | None = None) -> str:
    """Name the parts of an amount; with ``of``, those that it has."""
    of = of or amount
    told = [f"{three_digits(amount.cpu_cores)} core{'s' * (amount.cpu_cores != 1)}"] if of.cpu_cores > 0 else []
    told += [f"{three_digits(amount.memory_bytes / GIB)} GiB"] if of.memory_bytes > 0 else []
    return " and ".join([*told, *(f"{amount.count_of(name)} {name}" for name, count in of.extended if count > 0)])


def _resources(amount: Amount) -> Resources:
    return Resources(amount.cpu_cores, amount.memory_bytes, extended_of(amount.extended))


def cluster_view(found: GetClusterReply, reads: Reads, after: str = "") -> ClusterView:
    """Return the cluster as a caller may see it. Jobs of teams that the caller may not read have neither name nor
    place.

    ``after`` selects among the readable holders, so that no answer depends on the names of others.
    """
    readable = [holder for holder in found.holders if reads(holder.team)]
    page = [holder for holder in readable if holder.job > after][: HOLDERS_SHOWN + 1]
    return ClusterView(
        capacity=found.capacity,
        held=found.held,
        free=found.free,
        unplaceable=[
            UnplaceableView(
                job=each.job if reads(each.team) else None,
                pod=each.pod if reads(each.team) else None,
                amount=each.amount,
                until_s=each.until_s,
                detail=each.detail if reads(each.team) else "",
            )
            for each in found.unplaceable
        ],
        holders=[
            HolderView(
                job=each.job,
                team=each.team,
                plan_version=each.plan_version,
                plan=each.plan,
                held=each.held,
                data_workers=each.data_workers,
                data_held=each.data_held,
                changing=each.changing,
                leaving=each.leaving,
            )
            for each in page[:HOLDERS_SHOWN]
        ],
        others=len(found.holders) - len(readable),
        after=page[HOLDERS_SHOWN - 1].job if len(page) > HOLDERS_SHOWN else None,
        waiting=[
            WaitingView(
                position=position,
                job=each.job if (own := reads(each.team)) else None,
                team=each.team if own else None,
                submitted_at_s=each.submitted_at_s,
                priority=each.priority,
                wanted=each.wanted if own else None,
                least=each.least,
                lacking=each.lacking,
                reason=each.reason if own else "",
            )
            for position, each in enumerate(found.waiting, 1)
        ],
        waiting_count=found.waiting_count,
    )


def device_views(types: Iterable[DeviceTypeSpec]) -> list[DeviceView]:
    """Return the types of devices as every caller may see them."""
    return [
        DeviceView(
            name=each.name,
            price_per_hour=each.price_per_hour,
            count=each.count,
            cpu_cores=each.cpu_cores,
            memory_bytes=each.memory,
        )
        for each in types
    ]


def team_views(
    found: GetClusterReply, jobs: Iterable[JobView], quotas: Quotas, own: str, reads: Reads
) -> list[TeamView]:
    """Return the readable teams: the caller's own, teams with live jobs, and teams that a quota names."""
    live = Counter(view.team for view in jobs if view.status not in OVER)
    held = {holder.team: NOTHING for holder in found.holders}
    for holder in found.holders:
        for amount in (holder.held, holder.data_held):
            held[holder.team] += _resources(amount)
    names = {own, *live, *held, *(quotas.keys() - {OTHERS})}
    readable = sorted(filter(reads, names))
    return [_team_view(team, live[team], held.get(team, NOTHING), quota_of(quotas, team)) for team in readable]


def _team_view(team: str, jobs: int, held: Resources, quota: TeamQuota) -> TeamView:
    return TeamView(
        team=team,
        jobs=jobs,
        held=Amount(cpu_cores=held.cpu_cores, memory_bytes=held.memory_bytes, extended=dict(held.extended)),
        jobs_max=quota.jobs,
        cpu_cores_max=quota.cores,
        memory_bytes_max=None if quota.memory_gib is None else int(quota.memory_gib * GIB),
        extended_max=quota.extended,
        priority_max=quota.priority_max,
        weight=quota.weight,
        borrow=quota.borrow,
    )

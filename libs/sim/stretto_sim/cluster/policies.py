"""Events and commands of a policy, and the policies that keep one plan per job: the user's request, a search.

A session is pure like the machines of the services: it takes events of the cluster and returns commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stretto_messages.values import Plan

from stretto_sim.cluster.search import tuned_plan
from stretto_sim.cluster.trace import ClusterTraceSettings, TraceJob


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job was submitted."""

    job: int


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """All pods of the job match the plan of that version, ``took_s`` after its command."""

    job: int
    version: int
    plan: Plan
    took_s: float


@dataclass(frozen=True, slots=True)
class RestartRefused:
    """There is no room to restart the job with the commanded plan: it stays as it is."""

    job: int


@dataclass(frozen=True, slots=True)
class Server:
    """A parameter server in a window: its updates, the seconds of each, its busy cores."""

    number: int
    updates: int
    update_s: float
    busy_cores: float
    cores: float
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """A measurement of a job. ``settled``: the job ran by its plan for the whole window."""

    job: int
    version: int
    plan: Plan
    step_time_s: float
    samples_per_s: float
    samples_done: int
    seconds: float
    settled: bool
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class ServerDied:
    """A parameter server has died, and another one is started; ``oom``: it exceeded its memory limit."""

    job: int
    number: int
    oom: bool


@dataclass(frozen=True, slots=True)
class Replaced:
    """A server has taken another one's place."""

    job: int
    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A job has ended, and its pods are gone."""

    job: int
    how: str


@dataclass(frozen=True, slots=True)
class Period:
    """An interval of the policy, ``period_s``, is over; it comes while there are jobs."""


@dataclass(frozen=True, slots=True)
class Want:
    """Give the job this plan. ``restart``: stop and restart it for that; its first start is no restart."""

    job: int
    plan: Plan
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Put a new server in the place of one; both run until the parameters have moved."""

    job: int
    number: int


Event = Submitted | PlanInForce | RestartRefused | MeasuredWindow | ServerDied | Replaced | Ended | Period
Command = Want | Replace
WhenPodsDie = Literal["the job fails", "the job restarts", "the pod is replaced"]


class PolicySession(Protocol):
    """A policy at work on one trace. Jobs are numbered by submission."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Return the commands after an event; ``now`` is in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """Algorithms of the kind ``simulate cluster``.

    ``dynamic``: workers take shards at their own speed, so a straggler delays nobody (DLRover-RM section 5.1).
    ``windows``: the policy gets measurements.
    """

    session: Callable[[Sequence[TraceJob], ClusterTraceSettings], PolicySession]
    dynamic: bool = False
    when_pods_die: WhenPodsDie = "the job fails"
    windows: bool = False
    period_s: float | None = None


class Once:
    """A session that starts every job with one plan and never changes it."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans

    def handle(self, event: Event, now: float) -> list[Command]:
        """Start a job with its plan."""
        return [Want(event.job, self.plans[event.job])] if isinstance(event, Submitted) else []


class Restarting:
    """:class:`Once` with restarts: a job that became much slower is stopped and started again (§6.2)."""

    SLOWER, PATIENCE = 0.7, 2

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        self.best: dict[int, float] = {}
        self.slow: dict[int, int] = {}

    def handle(self, event: Event, now: float) -> list[Command]:
        """Start a job with its plan; restart it after ``PATIENCE`` slow measurements."""
        match event:
            case Submitted():
                return [Want(event.job, self.plans[event.job])]
            case MeasuredWindow() if event.settled:
                best = self.best[event.job] = max(self.best.get(event.job, 0.0), event.samples_per_s)
                slow = self.slow.get(event.job, 0) + 1 if event.samples_per_s < self.SLOWER * best else 0
                self.slow[event.job] = slow
                if slow == self.PATIENCE:
                    return [Want(event.job, self.plans[event.job], restart=True)]
            case _:
                pass
        return []


STATIC = Policy(lambda jobs, settings: Once([job.request for job in jobs]))
TUNED = Policy(lambda jobs, settings: Once([tuned_plan(job, settings) for job in jobs]))
RESTARTING = Policy(
    lambda jobs, settings: Restarting([tuned_plan(job, settings) for job in jobs]),
    when_pods_die="the job restarts",
    windows=True,
)
"""The tuned plans, with "traditional migration" of slow jobs."""

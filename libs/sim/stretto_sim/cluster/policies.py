"""Inputs and answers of a policy, and the two that never change a job: the user's request and a search.

A session is pure like the machines of the services: it hears what happens in the cluster and answers with commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stretto_messages.values import Plan

from stretto_sim.cluster.search import tuned_plan
from stretto_sim.cluster.trace import Settings, TraceJob


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job has come."""

    job: int


@dataclass(frozen=True, slots=True)
class Applied:
    """All pods of the job are as the plan of that version wants them, so long after it was asked for."""

    job: int
    version: int
    plan: Plan
    took_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no room to restart the job with the plan that was asked for: it stays as it is."""

    job: int


@dataclass(frozen=True, slots=True)
class Server:
    """A parameter server in a window: updates, seconds of each, cores at work."""

    number: int
    updates: int
    update_s: float
    busy_cores: float
    cores: float
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """A measurement of a job. ``settled``: it ran by its plan since the last one."""

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
    """A parameter server is gone, another one is started; ``oom``: it needed more than its limit."""

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
    """A job is over, its pods are gone."""

    job: int
    how: str


@dataclass(frozen=True, slots=True)
class Period:
    """Comes every ``period_s`` of the policy while jobs are there."""


@dataclass(frozen=True, slots=True)
class Want:
    """The job is to have this plan. ``restart``: by stop and restart; the first start is none."""

    job: int
    plan: Plan
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """A fresh server is to take the place of one, beyond the plan until it has."""

    job: int
    number: int


Event = Submitted | Applied | Refused | Window | ServerDied | Replaced | Ended | Period
Command = Want | Replace
WhenPodsDie = Literal["the job fails", "the job restarts", "the pod is replaced"]


class Session(Protocol):
    """A policy at work on one trace. Jobs are numbered by submission."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """``now`` in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """Algorithms of the kind ``simulate cluster``.

    ``dynamic``: workers take shards as they can, a straggler delays nobody (DLRover-RM section 5.1). ``windows``:
    whether it wants to hear what is measured.
    """

    session: Callable[[Sequence[TraceJob], Settings], Session]
    dynamic: bool = False
    when_pods_die: WhenPodsDie = "the job fails"
    windows: bool = False
    period_s: float | None = None


class Once:
    """Every job starts with one plan and keeps it."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans

    def handle(self, event: Event, now: float) -> list[Command]:
        """Only what comes is answered."""
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
            case Window() if event.settled:
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
"""what is tuned, with "traditional migration" of slow jobs"""

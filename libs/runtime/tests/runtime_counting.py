"""A service that counts: whatever is lost, doubled or reordered shows in its outputs.

``python runtime_counting.py`` runs one replica of it, for tests that kill.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from stretto_core.machine import Action, CoreError, Emit, Reply, Tick
from stretto_messages.dispatcher import JobProgressed, NextShard, NextShardReply
from stretto_messages.gateway import JobCancelled
from stretto_runtime import Input, Meta, Service, Settings, run
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec


@dataclass
class CountState:
    count: int = 0
    total: int = 0
    ticks: int = 0
    seen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Add:
    job: str
    value: int


@dataclass(frozen=True)
class Take:
    request_id: str
    job: str


@dataclass(frozen=True)
class Counted:
    job: str
    count: int
    total: int


@dataclass(frozen=True)
class Taken:
    job: str
    count: int


class Counter:
    """Emits the running count and sum; refuses negative numbers, breaks on 666."""

    version = 1

    def __init__(self, state: CountState | None = None) -> None:
        self.state = state or CountState()

    def handle(self, event: Any, now: float) -> list[Action]:
        if isinstance(event, Tick):
            self.state.ticks += 1
            return []
        self.state.count += 1
        if isinstance(event, Take):
            return [Reply(Taken(event.job, self.state.count)), Emit(Counted(event.job, self.state.count, -1))]
        if event.value < 0:
            raise CoreError(f"value = {event.value}: not negative")
        if event.value == 666:
            raise RuntimeError("a bug")
        self.state.total += event.value
        return [Emit(Counted(event.job, self.state.count, self.state.total))]


class CountingSettings(Settings):
    delay_s: float = 0.0
    silent: bool = False


class Counting(Service):
    name = "dispatcher"
    version = 1
    settings_type = CountingSettings
    inputs = (Input(JobCancelled),)
    rpcs = (NextShard,)
    state_types = {"job": CountState}  # noqa: RUF012

    def machine(self, key: str, state: Any) -> Counter:
        return Counter(state)

    def deciding(self) -> dict[str, Any]:
        return {}  # how slow it is changes nothing

    def to_event(self, message: Any, meta: Meta) -> Any:
        if self.settings.delay_s:  # even a sleep of no time takes fifty microseconds
            time.sleep(self.settings.delay_s)
        if isinstance(message, NextShard):
            return Take(message.request_id, message.job)
        return Add(message.job, int(message.reason))

    def to_message(self, key: str, fact: Any) -> Any:
        if isinstance(fact, Taken):
            return NextShardReply(job=fact.job, answer="wait", wait_s=float(fact.count))
        if self.settings.silent:
            return None
        return JobProgressed(
            job=fact.job,
            samples_done=fact.count,
            samples_total=max(0, fact.total),
            epoch=0,
            samples_per_s=0.0,
            shards_leased=0,
            shards_requeued_total=0,
        )


def add(job: str, value: int) -> JobCancelled:
    return JobCancelled(job=job, reason=str(value))


def submission(job: str) -> JobSubmitted:
    parsed = JobSpec.parse({"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 5}})
    return JobSubmitted(job=job, spec=parsed)


if __name__ == "__main__":
    run(Counting)

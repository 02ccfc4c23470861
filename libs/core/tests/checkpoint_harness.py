"""A checkpoints machine with a clock, for tests."""

from __future__ import annotations

from typing import Any

from checkpoint_builders import images_flushed, images_saved, servers_changed
from stretto_core.checkpoints.machine import CheckpointMachine
from stretto_core.checkpoints.state import CheckpointState, JobOpened
from stretto_core.machine import Tick

POLICY = JobOpened("job", "file:/store/job", every_s=10.0, keep=2, final=True)


def served(policy: JobOpened = POLICY) -> Job:
    """Return a job with two servers, whose first checkpoint has begun if it takes any."""
    job = Job(policy)
    job.serve()
    return job


class Job:
    """A machine and everything it told."""

    def __init__(self, policy: JobOpened = POLICY) -> None:
        self.machine = CheckpointMachine()
        self.now = 100.0
        self.facts: list[Any] = []
        self.tell(policy)

    @property
    def state(self) -> CheckpointState:
        return self.machine.state

    def tell(self, event: Any) -> list[Any]:
        facts = [a.fact if hasattr(a, "fact") else a.body for a in self.machine.handle(event, self.now)]
        self.facts += facts
        return facts

    def told(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def serve(self, version: int = 1, servers: tuple[int, ...] = (0, 1)) -> None:
        self.tell(servers_changed(version, servers))

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    def save(self) -> str:
        name = self.state.attempt.id
        self.tell(images_saved(name, "ledger", 500))
        return name

    def complete(self) -> str:
        name = self.save()
        self.tell(images_flushed(name))
        return name

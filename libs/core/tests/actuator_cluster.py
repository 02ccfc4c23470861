"""A simulated cluster for the actuator's machine: pods that start, die and move buckets when they are told."""

from __future__ import annotations

from typing import Any

from actuator_builders import (
    buckets_claimed,
    checkpoint_restored,
    counts_taken,
    moves_finished,
    moves_started,
    plan_converged,
    plan_decided,
    pod_exited,
    pod_resize_refused,
    pod_resized,
    pod_started,
    recomputation_decided,
    replacement_decided,
    server_counts,
    server_emptied,
)
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.placement import claim, plan_moves
from stretto_core.actuator.state import ActuatorState, JobOpened, Pod
from stretto_core.actuator.steps import Rebalance, Steps, next_steps
from stretto_core.machine import Tick
from stretto_messages.actuator import ReplacementAsked
from stretto_messages.values import Plan


class SimulatedCluster:
    """Pods and ownership, as a backend and parameter servers would hold them; carries out steps, reports events."""

    def __init__(self, opened: JobOpened | None = None) -> None:
        self.machine = ActuatorMachine()
        self.now = 1000.0
        self.room: bool | None = True
        """The arbiter's answer to a request for one server more; None: no answer yet."""
        self.in_place = True
        """True if limits of running pods can change."""
        self.knows_samples = True
        """True if the ledger knows what restored columns lack."""
        self.pods: dict[str, str] = {}
        self.launched: list[str] = []
        self.facts: list[Any] = []
        self.own: dict[int, list[int]] = {}
        self.tell(opened or JobOpened("job", samples_total=12))

    @property
    def state(self) -> ActuatorState:
        return self.machine.state

    def tell(self, event: Any) -> list[Any]:
        facts = [
            action.fact if hasattr(action, "fact") else action.body for action in self.machine.handle(event, self.now)
        ]
        self.facts += facts
        for fact in facts:
            if isinstance(fact, ReplacementAsked) and self.room is not None:
                self.tell(replacement_decided(fact.pod, self.room))
        return facts

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    def told(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def kill(self, name: str, reason: str = "killed", code: int | None = 137) -> None:
        self.pods.pop(name, None)
        self.own.pop(int(name.split("-")[1]), None) if name.startswith("ps") else None
        self.tell(pod_exited(name, reason, code))

    def step(self) -> bool:
        """Carry out the steps that are due now; return True if there were any."""
        self.now += 0.1
        if self.state.layout == "restoring":
            assert not any(self.own.get(pod.number) for pod in self.state.listed()), (
                "nothing of before the return stays"
            )
            parts = claim([pod.number for pod in self.state.listed()])
            self.own = {number: list(buckets) for number, (buckets, _) in parts.items()}
            self.tell(checkpoint_restored())
            return True
        if self.state.layout == "recovering":
            self.restore_columns()
            return True
        steps = next_steps(self.state, self.now)
        if steps.retry_at_s is not None and not steps.launch:
            self.now = max(self.now, steps.retry_at_s)
            steps = next_steps(self.state, self.now)
        for pod in steps.launch:
            if pod.name not in self.pods:
                assert pod.name not in self.launched, "a name was used twice"
                self.launched.append(pod.name)
                self.pods[pod.name] = "running"
            self.tell(pod_started(pod.name, pod.cpu_cores, pod.memory_bytes, pod.cause))
        for pod in steps.stop:
            self.kill(pod.name, "completed", 0)
        for pod in steps.resize:
            self.resize(pod)
        self.place(steps)
        if steps.rebalance:
            self.migrate(steps.rebalance)
        if steps.converged:
            self.tell(plan_converged(steps.converged))
        if steps.conclude:
            self.tell(counts_taken(server_counts(1, rows=5, checksum="7")))
        return steps != Steps(expect=steps.expect, retry_at_s=steps.retry_at_s)

    def place(self, steps: Steps) -> None:
        for pod in steps.empty:
            self.own[pod.number] = []
            self.tell(server_emptied(pod.name, self.state.returned_version))
        if steps.claim:
            self.own = {int(name.split("-")[1]): list(columns) for name, (columns, _) in steps.claim.items()}
            self.tell(buckets_claimed(*steps.claim))

    def restore_columns(self) -> None:
        """Bring buckets without an owner back on the servers that survive, unless these are not to go on."""
        if self.knows_samples:
            survivors = [pod.number for pod in self.state.listed()]
            owned = {bucket for buckets in self.own.values() for bucket in buckets}
            for bucket in set(range(64)) - owned:
                self.own.setdefault(survivors[bucket % len(survivors)], []).append(bucket)
        self.tell(recomputation_decided(self.state.loss, self.knows_samples))

    def resize(self, pod: Pod) -> None:
        if self.in_place:
            self.tell(pod_resized(pod.name, pod.cpu_cores, pod.memory_bytes))
        elif all(p.phase == "running" and not p.leaving for p in self.state.pods.values() if p.role == pod.role):
            self.tell(pod_resize_refused(pod.name))

    def migrate(self, wanted: Rebalance) -> None:
        servers = sorted({*self.own, *wanted.weights})
        vectors = {p: [int(b in self.own.get(p, [])) for b in range(64)] for p in servers}
        dense = {p: [int(p == servers[0])] * 12 for p in servers}
        moves = plan_moves(vectors, dense, [1] * 64, wanted.weights)
        moved = [(b, s, d) for d, part in moves.items() for b, s in part if b < 64]
        if moved:
            self.tell(moves_started(wanted.number, len(moved)))
        for bucket, source, destination in moved:
            self.own[source].remove(bucket)
            self.own.setdefault(destination, []).append(bucket)
        self.tell(moves_finished(wanted.number, len(moved)))

    def run(self, limit: int = 60) -> None:
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"does not converge: {next_steps(self.state, self.now)}")

    def running(self, role: str) -> list[str]:
        return sorted(name for name in self.pods if name.startswith(role))


def started(first: Plan, opened: JobOpened | None = None) -> SimulatedCluster:
    cluster = SimulatedCluster(opened)
    cluster.tell(plan_decided(1, first))
    cluster.run()
    return cluster

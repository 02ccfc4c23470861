"""One job in the cluster: its pods, the servers that hold its parameters, and its speed until the next event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from stretto_messages.base import GIB
from stretto_messages.values import Plan, Resources

from stretto_sim.cluster import truth
from stretto_sim.cluster.nodes import NOWHERE, Nodes, SimulatedPod
from stretto_sim.cluster.outcome import Usage
from stretto_sim.cluster.trace import DAY_S, ClusterTraceSettings, TraceJob

NEARLY = 1e-6
"""Tolerance for rounding, in samples or seconds."""
WINDOW_S, FIRST_WINDOWS = 60.0, 3
"""The first windows under a plan, and their number: together the paper's interval (section 6.2: three minutes)."""
LONGER, LONGEST_WINDOW_S = 1.5, 900.0
"""The ratio of each later window to the one before, and the longest: known measurements repeat less and less often."""


@dataclass(frozen=True, slots=True)
class Fate:
    """Faults of a job under every policy: the samples at which a pod turns slow and at which it fails."""

    slow_at: float = math.inf
    slow: str = ""
    fails_at: float = math.inf


@dataclass(slots=True, eq=False)
class Live:
    """A job from its submission to its end.

    ``holders`` are the servers that hold parameters, ``servers`` those of the plan.
    """

    number: int
    job: TraceJob
    settings: ClusterTraceSettings
    dynamic: bool
    rng: np.random.Generator
    fate: Fate
    plan: Plan | None = None
    version: int = 0
    asked_s: float = 0.0
    in_force: int = 0
    workers: list[SimulatedPod] = field(default_factory=list[SimulatedPod])
    servers: list[SimulatedPod] = field(default_factory=list[SimulatedPod])
    holders: list[SimulatedPod] = field(default_factory=list[SimulatedPod])
    moving: bool = False
    paused_until_s: float = 0.0
    standing: bool = False
    samples: float = 0.0
    since_s: float = 0.0
    rate: float = 0.0
    epoch: int = 0
    started_s: float | None = None
    stood_s: float = 0.0
    trained_s: float = 0.0
    """Last time at which the job trained; before it trains, its submission."""
    scaled_s: float = 0.0
    changes: int = 0
    restarts: int = 0
    kills_in_row: int = 0
    slowed: bool = False
    window_due_s: float = math.inf
    window_s: float = 0.0
    windows: int = 0
    window_from: tuple[float, float] = (0.0, 0.0)
    unsettled: bool = False
    named: int = 0
    first: tuple[int, int, float, float] | None = None
    usage: Usage = field(default_factory=Usage)
    reserved: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Reserved cores and bytes of the workers, then of the servers."""
    busy: tuple[float, float] = (0.0, 0.0)

    # ---- pods -------------------------------------------------------------------------------------------------

    def fresh(self, role: str, size: Resources, ready_s: float = math.inf) -> SimulatedPod:
        """Return a new pod without a node."""
        self.named += 1
        return SimulatedPod("worker" if role == "worker" else "ps", size, ready_s=ready_s, number=self.named)

    def started(self, pod: SimulatedPod, now: float) -> None:
        """Start the pod on its node, and draw the time at which it dies."""
        pod.ready_s = now + self.settings.pod_start_s
        if self.settings.pod_failures_per_day:
            pod.dies_s = now + float(self.rng.exponential(DAY_S / self.settings.pod_failures_per_day))

    @property
    def pods(self) -> list[SimulatedPod]:
        """Return all pods that may hold a node."""
        return [*self.workers, *self.servers, *(pod for pod in self.holders if pod not in self.servers)]

    @property
    def pending(self) -> list[SimulatedPod]:
        """Return the pods without a node, servers first."""
        return [pod for pod in (*self.servers, *self.workers) if pod.node == NOWHERE]

    def gang(self, plan: Plan) -> tuple[list[SimulatedPod], list[SimulatedPod]]:
        """Return the servers and workers of a plan, without nodes."""
        server, worker = sizes(plan)
        return [self.fresh("ps", server) for _ in range(plan.ps)], [
            self.fresh("worker", worker) for _ in range(plan.workers)
        ]

    def place_gang(self, nodes: Nodes, plan: Plan, now: float, least_workers: int) -> bool:
        """Place all servers and ``least_workers`` workers, or no pod at all; return True if placed."""
        servers, workers = self.gang(plan)
        placed = list[SimulatedPod]()
        for pod in (*servers, *workers[:least_workers]):
            if not nodes.place(pod):
                for each in placed:
                    nodes.release(each)
                return False
            placed.append(pod)
        for pod in placed:
            self.started(pod, now)
        self.servers, self.workers, self.holders = servers, workers, list(servers)
        return True

    def adapt(self, nodes: Nodes, plan: Plan) -> None:
        """Change the pods to those of the plan while the job trains, in place where the node has room."""
        server, worker = sizes(plan)
        for pod in self.workers[plan.workers :]:
            nodes.release(pod)
        del self.workers[plan.workers :]
        for pod in self.workers:
            if pod.size != worker and not nodes.resize(pod, worker):
                nodes.release(pod)
                pod.size, pod.ready_s = worker, math.inf
        self.workers += [self.fresh("worker", worker) for _ in range(plan.workers - len(self.workers))]
        for pod in self.servers[plan.ps :]:
            if pod not in self.holders:
                nodes.release(pod)
        del self.servers[plan.ps :]
        for index, pod in enumerate(self.servers):
            if pod.size != server and not nodes.resize(pod, server):
                if pod in self.holders:
                    self.servers[index] = self.fresh("ps", server)
                else:
                    nodes.release(pod)
                    pod.size, pod.ready_s = server, math.inf
        self.servers += [self.fresh("ps", server) for _ in range(plan.ps - len(self.servers))]

    def place_pending(self, nodes: Nodes, now: float) -> None:
        """Place the pods without a node where there is room."""
        for pod in self.pending:
            if nodes.place(pod):
                self.started(pod, now)

    def release_all(self, nodes: Nodes) -> None:
        """Release all pods."""
        for pod in self.pods:
            nodes.release(pod)
        self.workers, self.servers, self.holders = [], [], []

    # ---- training ---------------------------------------------------------------------------------------------

    def reached(self, samples: float) -> bool:
        """Return True if ``samples`` are trained, with a tolerance of a microsecond of training."""
        return self.samples >= samples - NEARLY * max(self.rate, 1.0)

    def ready_workers(self, now: float) -> list[SimulatedPod]:
        return [pod for pod in self.workers if pod.ready_s <= now + NEARLY]

    def complete(self, now: float) -> bool:
        """Return True if all pods match the plan and all parameters are on their servers."""
        there = all(pod.ready_s <= now + NEARLY for pod in (*self.workers, *self.servers))
        return there and not self.moving and self.holders == self.servers

    def could_move(self, now: float) -> bool:
        """Return True if parameters are misplaced and all their destination servers run."""
        there = all(pod.ready_s <= now + NEARLY for pod in self.servers)
        return not self.moving and self.holders != self.servers and there

    def move(self, now: float) -> None:
        """Begin to move the parameters to the servers of the plan, in a pause."""
        self.moving = True
        old, new = len(self.holders), len(self.servers)
        stay = sum(pod in self.servers for pod in self.holders)
        part = 1 - stay / max(old, new)
        gib = part * truth.embedding_bytes(self.job, self.samples) / GIB
        pause_s = max(self.settings.move_pause_s, gib * self.settings.move_s_per_gib)
        self.paused_until_s = max(self.paused_until_s, now + pause_s)

    def moved(self, nodes: Nodes) -> None:
        """End the move, and release the servers without parameters."""
        self.moving = False
        for pod in self.holders:
            if pod not in self.servers:
                nodes.release(pod)
        self.holders = list(self.servers)

    def slowest(self) -> float:
        """Return the share of an update over the cores of the slowest server, which every push waits for."""
        return 1 / (len(self.holders) * min(pod.size.cpu_cores * pod.speed for pod in self.holders))

    def limit_bytes(self) -> float:
        return min(pod.size.memory_bytes for pod in self.holders)

    def rate_now(self, now: float) -> float:
        """Return the samples per second."""
        held = self.holders and all(pod.node != NOWHERE and pod.ready_s <= now + NEARLY for pod in self.holders)
        ready = self.ready_workers(now)
        if self.paused_until_s > now + NEARLY or not held or not ready:
            return 0.0
        cores = [pod.size.cpu_cores * pod.speed for pod in ready]
        return truth.rate(self.job, cores, len(self.holders), self.slowest(), self.dynamic)

    def advance(self, now: float) -> None:
        """Train until ``now`` at the rate since the last event."""
        seconds = now - self.since_s
        if seconds <= 0:
            return
        before, usage = self.samples, self.usage
        self.samples = min(before + self.rate * seconds, self.job.samples)
        if self.rate:
            self.trained_s = now
        elif self.started_s is not None:
            self.stood_s += seconds
        cores_w, bytes_w, cores_p, bytes_p = self.reserved
        usage.worker_core_s += cores_w * seconds
        usage.ps_core_s += cores_p * seconds
        usage.worker_byte_s += bytes_w * seconds
        usage.ps_byte_s += bytes_p * seconds
        usage.worker_busy_core_s += self.busy[0] * seconds
        usage.ps_busy_core_s += self.busy[1] * seconds
        if self.rate:
            ready = len(self.ready_workers(self.since_s))
            used = truth.mean_embedding_bytes(self.job, before, self.samples)
            usage.worker_used_byte_s += ready * self.job.worker_bytes * seconds
            usage.ps_used_byte_s += (used + len(self.holders) * self.job.server_base_bytes) * seconds
        self.since_s = now

    def next_s(self, now: float) -> float:
        """Return the time of the job's next own event; the rate holds until then."""
        if not self.servers:  # it waits for room; its window is reported once it trains again
            return math.inf
        ready = [pod.ready_s for pod in (*self.workers, *self.servers) if now + NEARLY < pod.ready_s < math.inf]
        moments = [*ready, *(pod.dies_s for pod in self.pods if pod.node != NOWHERE), self.window_due_s]
        if self.paused_until_s > now + NEARLY:
            moments.append(self.paused_until_s)
        if self.rate:
            stop = min(self.job.samples, self.fills_at())
            for at in (stop, self.fate.fails_at, self.fate.slow_at if not self.slowed else math.inf):
                if at < math.inf:
                    moments.append(now + max(at - self.samples, 0.0) / self.rate)
        return min(moments, default=math.inf)

    def fills_at(self) -> float:
        """Return the samples after which a server runs out of memory; infinite if none ever does."""
        return truth.samples_that_fit(self.job, len(self.holders), self.limit_bytes())

    # ---- windows ----------------------------------------------------------------------------------------------

    def open_windows(self, now: float) -> None:
        """Begin with short windows: a plan is in force."""
        self.window_from, self.window_s, self.windows = (now, self.samples), WINDOW_S, 0
        self.window_due_s, self.unsettled = now + self.window_s, False

    def next_window(self, now: float) -> None:
        """Begin the next window."""
        self.window_from, self.unsettled = (now, self.samples), False
        self.windows += 1
        if self.windows >= FIRST_WINDOWS:
            self.window_s = min(self.window_s * LONGER, LONGEST_WINDOW_S)
        self.window_due_s = now + self.window_s

    def noisy(self, value: float) -> float:
        """Return a measurement of ``value``, with the noise of the settings."""
        return value * math.exp(self.settings.noise * float(self.rng.standard_normal()))


def sizes(plan: Plan) -> tuple[Resources, Resources]:
    """Return the resources of a server and of a worker."""
    return (
        Resources(plan.ps_cpu_cores, plan.ps_memory_bytes),
        Resources(plan.worker_cpu_cores, plan.worker_memory_bytes),
    )


def shape(plan: Plan) -> tuple[int, int, float, float]:
    """Return the counts and cores of a plan, without memory."""
    return plan.workers, plan.ps, plan.worker_cpu_cores, plan.ps_cpu_cores

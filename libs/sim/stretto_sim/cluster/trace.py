"""Input of the simulation: submitted training jobs, the nodes that they share, and disturbances."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stretto_core.model.types import JobLimits
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import Plan, Resources

from stretto_sim.measures import LATEST_S

DAY_S = 86_400.0
PODS_MOST, NODES_MOST = 10_000, 1_000_000
"""Most pods per role that a job may request, and most nodes of a cluster: each is kept in memory."""
FAILURES_MOST = 100.0
"""Most failures of a pod in a day: it lives for a quarter of an hour."""


def _check(name: str, value: float, low: float, high: float = math.inf, open_end: bool = False) -> None:
    if not math.isfinite(value) or not low <= value <= high or (open_end and value == low):
        bounds = f"above {low:g}" if open_end else f"of at least {low:g}"
        raise InvalidValue(
            f"{name} is {value!r}; give a finite number {bounds}" + f", at most {high:g}" * (high < 1e300)
        )


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: its true properties, which no policy sees, and its user's request.

    A step of one worker takes the time T of DLRover-RM Eq. 1-6, in which M, B and D are parts of their coefficients,
    plus ``per_worker_s``, a cost of measured systems that more servers do not shrink:

        T = alpha_grad m/l_w + alpha_upd w/(p l_p) + alpha_sync w/p + alpha_emb m/p + constant_s + per_worker_s w.

    Its embeddings fill ``embedding_bytes`` once ``samples`` are trained, growing as samples^``growth`` (Heaps' law), in
    equal parts on its servers. Each server needs ``server_base_bytes`` more, and each worker ``worker_bytes``.
    ``metadata`` is the part that a scheduler may know before the job runs.
    """

    submit_s: float
    samples: int
    batch_size: int
    alpha_grad: float
    alpha_upd: float
    alpha_sync: float
    alpha_emb: float
    constant_s: float
    request: Plan
    limits: JobLimits
    per_worker_s: float = 0.0
    embedding_bytes: int = 0
    growth: float = 0.7
    server_base_bytes: int = GIB // 16
    worker_bytes: int = GIB // 2
    metadata: dict[str, str | float | int | bool] = field(default_factory=dict[str, str | float | int | bool])

    def __post_init__(self) -> None:
        _check("submit_s", self.submit_s, 0, LATEST_S)
        _check("workers", self.request.workers, 1, PODS_MOST)
        _check("ps", self.request.ps, 1, PODS_MOST)
        _check("samples", self.samples, 1)
        _check("batch_size", self.batch_size, 1)
        terms = ("alpha_grad", "alpha_upd", "alpha_sync", "alpha_emb", "constant_s", "per_worker_s")
        for name in (*terms, "embedding_bytes", "server_base_bytes", "worker_bytes"):
            _check(name, getattr(self, name), 0)
        if not any(getattr(self, name) for name in terms):
            raise InvalidValue(f"{terms[0]} is 0, and so are {', '.join(terms[1:])}; give at least one above 0")
        _check("growth", self.growth, 0, 1, open_end=True)


@dataclass(frozen=True, slots=True)
class ClusterTraceSettings:
    """The cluster and its disturbances, none by default. The nodes are those of DLRover-RM's experiments (section 6).

    ``pod_start_s``: time from a pod's placement until it takes part. ``restart_s``: further time of a stop-and-restart,
    to save and to load a checkpoint (section 6.2: 3 minutes). ``move_s_per_gib``: pause while parameters move between
    servers (section 5.2: less than a second for 20 GB), at least ``move_pause_s``. ``noise``: relative error of a
    measured step time. ``pod_failures_per_day``: failures of one pod (section 2.2: 0.015). ``straggler_rate``,
    ``hot_rate``: shares of the jobs in which one worker, or server, has only ``slow_cpu`` of its cores from some moment
    on (section 6.2: 3 %). ``bug_rate``: share of the jobs that fail by their own fault under every policy.
    ``patience_s``: time without training after which a job is given up ("scheduling" in Table 4; "pod failure" if its
    pods find nodes and die before they are ready).
    """

    nodes: int = 20
    node_cpu_cores: float = 32.0
    node_memory_bytes: int = 192 * GIB
    pod_start_s: float = 300.0
    restart_s: float = 180.0
    move_pause_s: float = 1.0
    move_s_per_gib: float = 0.05
    noise: float = 0.03
    pod_failures_per_day: float = 0.0
    straggler_rate: float = 0.0
    hot_rate: float = 0.0
    slow_cpu: float = 0.03
    bug_rate: float = 0.0
    patience_s: float = 3 * DAY_S
    seed: int = 0

    def __post_init__(self) -> None:
        _check("nodes", self.nodes, 1, NODES_MOST)
        for name in ("node_cpu_cores", "node_memory_bytes"):
            _check(name, getattr(self, name), 1)
        _check("pod_failures_per_day", self.pod_failures_per_day, 0, FAILURES_MOST)
        for name in ("pod_start_s", "restart_s", "move_pause_s", "move_s_per_gib", "seed"):
            _check(name, getattr(self, name), 0)
        for name in ("straggler_rate", "hot_rate", "bug_rate", "noise"):
            _check(name, getattr(self, name), 0, 1)
        _check("slow_cpu", self.slow_cpu, 0, 1, open_end=True)
        _check("patience_s", self.patience_s, 0, open_end=True)

    @property
    def capacity(self) -> Resources:
        """Return the resources of all nodes."""
        return Resources(self.nodes * self.node_cpu_cores, self.nodes * self.node_memory_bytes)

    @property
    def node(self) -> Resources:
        """Return the resources of one node."""
        return Resources(self.node_cpu_cores, self.node_memory_bytes)

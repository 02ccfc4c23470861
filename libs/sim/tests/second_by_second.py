"""The same experiment, second by second: nothing clever, so that the simulator can be held against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stretto_core.arbiter.ahead import AllocationProblem, ElasticJob
from stretto_sim.allocation import Policy, PoolTraceSettings, TraceJob
from stretto_sim.allocation.trace import fates


def second_by_second(trace: Sequence[TraceJob], policy: Policy, settings: PoolTraceSettings) -> list[dict[str, Any]]:
    """Each job's end, queueing, changes and how it ended, by submission."""
    trace = sorted(trace, key=lambda job: job.submit_s)
    jobs: list[dict[str, Any]] = [
        {"job": job, "fate": fate, "left": False, "here": False, "nodes": 0, "assigned": 0, "wait_s": 0.0}
        | {"trained_s": 0, "queued_s": 0.0, "started": False, "changes": 0, "how": "", "end_s": 0, "growing": False}
        | {"served": 0.0}
        for job, fate in zip(trace, fates(trace, settings), strict=True)
    ]
    now = 0
    while not all(job["left"] for job in jobs):
        now += 1
        changed = False
        for j in jobs:
            if j["here"] and not j["left"]:
                _second(j)
                changed |= _ended(j, now)
        for j in jobs:
            if not j["here"] and j["job"].submit_s <= now:
                j["here"] = True
                changed = True
        active = [j for j in jobs if j["here"] and not j["left"]]
        if active and ((policy.periodic and now % 300 == 0) or (policy.on_change and changed)):
            for j, size in zip(active, policy.decide(_problem(active, settings)), strict=True):
                _assign(j, size, settings)
        else:
            _start(active, settings)
        assert sum(j["nodes"] for j in jobs) <= settings.nodes
    return jobs


def _second(j: dict[str, Any]) -> None:
    """Advance a job by one second."""
    if not j["assigned"]:
        j["queued_s"] += 1
    if j["nodes"]:
        j["served"] += j["nodes"] * 0.8 ** math.log2(j["nodes"]) / 3600
        j["trained_s"] += 1
    if j["growing"]:
        j["wait_s"] -= 1
        if j["wait_s"] <= 0:
            j["nodes"], j["growing"] = j["assigned"], False


def _ended(j: dict[str, Any], now: int) -> bool:
    done = j["served"] >= j["job"].demand_node_hours - 1e-9
    over = j["served"] >= j["fate"].leaves_after_node_hours - 1e-9 or j["trained_s"] >= j["fate"].leaves_after_s
    if not j["trained_s"] or not (done or over):
        return False
    j.update(left=True, how="finished" if done else j["fate"].how, end_s=now, nodes=0, assigned=0)
    return True


def _start(active: list[dict[str, Any]], settings: PoolTraceSettings) -> None:
    for j in active:
        idle = settings.nodes - sum(other["assigned"] for other in active)
        if not j["assigned"] and idle:
            most = min(idle, j["job"].max_nodes)
            _assign(j, 2 ** int(math.log2(min(most, 16))), settings)


def _problem(active: list[dict[str, Any]], settings: PoolTraceSettings) -> AllocationProblem:
    least = 0 if len(active) > settings.nodes else 1
    return AllocationProblem(
        tuple(
            ElasticJob(
                str(index),
                max(j["fate"].believed_node_hours - j["served"], 0.05 * j["fate"].believed_node_hours),
                least,
                j["job"].max_nodes,
                j["assigned"],
                j["trained_s"],
            )
            for index, j in enumerate(active)
        ),
        settings.nodes,
    )


def _assign(j: dict[str, Any], size: int, settings: PoolTraceSettings) -> None:
    if size == j["assigned"]:
        return
    j["changes"] += 1 if j["started"] else 0
    j["started"] = j["started"] or size > 0
    j["assigned"] = size
    j["growing"] = settings.scaling_delay_s > 0 and size > j["nodes"]
    j["wait_s"] = settings.scaling_delay_s
    if not j["growing"]:
        j["nodes"] = size

"""GoldMiner's cluster experiment in small steps of time, without sharing: to hold the simulator against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto_sim.data_workers import Cluster, TraceJob


def tick_by_tick(trace: Sequence[TraceJob], policy: str, cluster: Cluster, tick_s: float) -> list[dict[str, Any]]:
    """Start, end and ideal run time of each job, by submission. Policies by their names."""
    trace = sorted(trace, key=lambda job: job.submit_s)
    jobs: list[dict[str, Any]] = [{"job": j, "state": "to come", "left_s": j.ideal_s, "share": 0.0} for j in trace]
    nodes = [{"gpus": cluster.gpus, "cpus": cluster.cpus} for _ in range(cluster.nodes)]
    now = 0.0
    while any(j["state"] != "over" for j in jobs):
        assert now < 100_000, "a job never starts"
        for j in jobs:
            if j["state"] == "runs" and j["left_s"] <= 1e-6:
                j.update(state="over", end_s=now)
                for node, gpus, cpus in j["holds"]:
                    node["gpus"] += gpus
                    node["cpus"] += cpus
            if j["state"] == "to come" and j["job"].submit_s <= now:
                j["state"] = "waits"
        for j in jobs:
            if j["state"] == "waits":
                if not _start(j, policy, cluster, nodes):
                    break
                j.update(state="runs", start_s=now)
        runs = [j for j in jobs if j["state"] == "runs"]
        for j in runs:
            j["left_s"] -= j["share"] * tick_s
        now += tick_s
    return jobs


def _start(j: dict[str, Any], policy: str, cluster: Cluster, nodes: list[dict[str, Any]]) -> bool:
    job = j["job"]
    each, workers, j["share"] = job.trainer_cpus, [], 1.0
    if policy == "tuned":
        each = job.cpus_per_gpu
    elif policy == "hardware":
        each = cluster.cpus / cluster.gpus
        j["share"] = min(1.0, each / job.cpus_per_gpu)
    elif policy == "fixed":
        size, left = min(8.0, job.data_cpus / job.gpus), job.data_cpus
        while left > 1e-6:
            workers.append(min(size, left))
            left -= size
    fits = [min(node["gpus"], int((node["cpus"] + 1e-6) / each)) for node in nodes]
    if sum(fits) < job.gpus:
        return False
    j["holds"], wanted = [], job.gpus
    while wanted:
        whole = [n for n in range(len(nodes)) if fits[n] >= wanted]
        if whole:
            n = min(whole, key=lambda n: (nodes[n]["gpus"], nodes[n]["cpus"]))
        else:
            n = max(range(len(nodes)), key=lambda n: (fits[n], -n))
        count = min(fits[n], wanted)
        j["holds"].append((nodes[n], count, count * each))
        wanted -= count
        fits[n] = 0
    for node, gpus, cpus in j["holds"]:
        node["gpus"] -= gpus
        node["cpus"] -= cpus
    home = [node for node, _, _ in j["holds"]]
    for size in workers:
        room = [node for node in nodes if node["cpus"] + 1e-6 >= size]
        if not room:
            for node, gpus, cpus in j["holds"]:
                node["gpus"] += gpus
                node["cpus"] += cpus
            return False
        # its own nodes first, then those with the least left
        node = min(room, key=lambda node: (all(node is not one for one in home), node["cpus"]))
        node["cpus"] -= size
        j["holds"].append((node, 0, size))
    return True

"""Workers on a type of devices whose units are taken away, as spot instances are: they come back on the same type."""

from __future__ import annotations

import random

from actuator_builders import plan
from actuator_cluster import SimulatedCluster, started
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.actuator.state import JobOpened, Pod
from stretto_core.model.types import DeviceType
from stretto_messages.actuator import JobFailed
from stretto_messages.base import GIB

TAKEN = 20
WITHIN_S = 600.0
"""A unit is taken away so often in this time."""
SPOT = DeviceType("spot", 0.05, 4, 2.0, 4 * GIB, interruptions_per_hour=TAKEN * 3600 / WITHIN_S)


def mixed() -> SimulatedCluster:
    """Return a job that trains with a worker on cores and one on the type."""
    opened = JobOpened("job", samples_total=12, worker_failures=0)
    return started(plan().with_workers(1, [SPOT.group(1)]), opened)


def on_devices(cluster: SimulatedCluster) -> Pod:
    (pod,) = [pod for pod in cluster.state.of_role("worker") if pod.device]
    return pod


def test_a_worker_whose_unit_is_taken_away_comes_back_on_the_same_type() -> None:
    cluster = mixed()
    names = {on_devices(cluster).name}
    for _ in range(TAKEN):
        cluster.kill(on_devices(cluster).name, "preempted", 137)
        cluster.run()
        again = on_devices(cluster)
        assert (again.device, again.cpu_cores, again.memory_bytes) == ("spot", SPOT.cpu_cores, SPOT.memory_bytes)
        names.add(again.name)
    assert len(names) == TAKEN + 1
    assert "worker-0" in cluster.pods, "the worker on cores trains on"
    assert cluster.told(JobFailed) == []


@given(st.integers(0, 2**32), st.floats(3.0, 20.0))
def test_interruptions_cost_what_the_planner_told_beforehand(seed: int, back_s: float) -> None:
    """Goal: the share of a worker's time that the type's rate and the time to be back tell is the lost one, to 15 %.

    Method: a unit is taken away 20 times in ten minutes, at random; each time another worker needs ``back_s`` to begin
    after the actuator has asked for it, which must be at once however soon the last one was taken.
    """
    rng, cluster = random.Random(seed), mixed()
    there = [rng.expovariate(1.0) for _ in range(TAKEN)]
    begun_s, lost_s = cluster.now, 0.0
    for share in there:
        cluster.now += (WITHIN_S - TAKEN * back_s) * share / sum(there)
        taken_s = cluster.now
        cluster.kill(on_devices(cluster).name, "preempted", 137)
        cluster.now += back_s
        cluster.run()
        begun = on_devices(cluster).started_at_s
        assert begun is not None
        lost_s += begun - taken_s
    told = SPOT.lost(back_s)
    assert abs(lost_s / (cluster.now - begun_s) / told - 1) < 0.15

"""The arbiter's answer about the cluster adds up, page by page, and changes nothing."""

from __future__ import annotations

from dataclasses import replace

from closed_loop import LIMITS, plan, profile
from hypothesis import given
from hypothesis import strategies as st
from job_builders import plan_proposed
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.model.types import JobOpened
from stretto_messages.arbiter import HOLDERS_MAX, GetCluster
from stretto_messages.base import GIB
from stretto_messages.values import Resources

CAPACITY = Resources(64, 256 * GIB)


def cluster(workers: list[int], capacity: Resources = CAPACITY) -> ArbiterMachine:
    """Jobs that start with at least these workers, in this order."""
    machine = ArbiterMachine(None, ArbiterSettings(capacity))
    for number, least in enumerate(workers):
        job, wanted = f"job-{number:04d}", plan(least, 1)
        limits = replace(LIMITS, low=replace(LIMITS.low, workers=least), high=replace(LIMITS.high, workers=least))
        machine.handle(JobOpened(job, profile(limits=limits)), float(number))
        machine.handle(plan_proposed(job, "warm-start", wanted, 0.1, ("r",)), float(number))
    return machine


@given(st.lists(st.integers(1, 30), max_size=12))
def test_what_is_held_and_free_is_the_capacity(workers: list[int]) -> None:
    machine = cluster(workers)
    found = machine.survey(GetCluster())
    assert found.capacity.cpu_cores == CAPACITY.cpu_cores
    assert abs(found.held.cpu_cores + found.free.cpu_cores - CAPACITY.cpu_cores) < 1e-6
    assert found.held.memory_bytes + found.free.memory_bytes == CAPACITY.memory_bytes
    assert abs(sum(one.held.cpu_cores for one in found.holders) - found.held.cpu_cores) < 1e-6
    assert len(found.holders) + found.waiting_count == len(workers)
    for waiting in found.waiting:
        assert max(waiting.lacking.cpu_cores, waiting.lacking.memory_bytes) > 0
        assert waiting.reason
    order = [one.job for one in found.waiting]
    assert order == sorted(order), "of equal weights the first comes first"
    assert machine.survey(GetCluster()) == found


def test_the_pages_of_holders_are_all_of_them() -> None:
    machine = cluster([1] * (2 * HOLDERS_MAX + 7), Resources(10**6, 2**60))
    seen, after, more = list[str](), "", True
    while more:
        found = machine.survey(GetCluster(after=after))
        seen += [one.job for one in found.holders]
        after, more = seen[-1], found.more
    assert seen == sorted(machine.state.jobs)

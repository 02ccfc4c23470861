"""Virtual time: nobody waits, processes are killed and frozen, and a seed decides the order."""

from __future__ import annotations

import asyncio

import pytest
from stretto_testing.loop import Stuck
from stretto_testing.simulation import Simulation
from stretto_wire.surroundings import monotonic_s, new_id, wall_s


def test_a_week_passes_at_once_and_clocks_agree() -> None:
    async def week() -> tuple[float, float]:
        before = wall_s(), monotonic_s()
        await asyncio.sleep(7 * 24 * 3600)
        return wall_s() - before[0], monotonic_s() - before[1]

    with Simulation(1) as simulation:
        wall, monotonic = simulation.run(week())
    assert wall == pytest.approx(7 * 24 * 3600, abs=0.01)
    assert monotonic == pytest.approx(wall, abs=0.01)


def orders(seed: int) -> list[str]:
    """Return in which order three processes do their steps, each of which draws an id."""
    done: list[str] = []

    async def steps(name: str) -> None:
        for number in range(20):
            await asyncio.sleep(0)
            done.append(f"{name} {number} {new_id(8)}")

    async def wait() -> None:
        await asyncio.sleep(1)

    with Simulation(seed) as simulation:
        for name in "abc":
            simulation.process(name, steps(name))
        simulation.run(wait())
    return done


def test_the_seed_decides_the_order_of_processes_but_not_that_within_one() -> None:
    assert orders(1) == orders(1) != orders(2)
    for name in "abc":
        mine = [int(step.split()[1]) for step in orders(1) if step.startswith(name)]
        assert mine == [*range(20)]


def test_a_killed_process_does_not_even_clean_up_and_a_frozen_one_goes_on_where_it_was() -> None:
    done: list[str] = []

    async def work(name: str) -> None:
        try:
            for number in range(5):
                await asyncio.sleep(1)
                done.append(f"{name} {number}")
        finally:
            done.append(f"{name} cleans up")

    async def scene() -> None:
        await asyncio.sleep(2.5)
        simulation.kill(killed)
        simulation.loop.freeze(frozen)
        await asyncio.sleep(60)
        assert sorted(done) == ["frozen 0", "frozen 1", "killed 0", "killed 1"]
        simulation.loop.thaw(frozen)
        await asyncio.sleep(60)
        assert done[4:] == ["frozen 2", "frozen 3", "frozen 4", "frozen cleans up"]

    with Simulation(3) as simulation:
        killed, frozen = (simulation.process(name, work(name)) for name in ("killed", "frozen"))
        simulation.run(scene())


def test_a_fuse_stops_a_process_between_two_of_its_steps() -> None:
    done: list[int] = []

    async def work() -> None:
        for number in range(100):
            done.append(number)
            await asyncio.sleep(0)

    async def wait() -> None:
        await asyncio.sleep(1)

    with Simulation(4) as simulation:
        node = simulation.process("a", work())
        node.fuse, node.burnt = 10, lambda: simulation.kill(node)
        simulation.run(wait())
    assert done == [*range(10)]


def test_waiting_for_what_never_comes_is_told() -> None:
    with Simulation(5) as simulation, pytest.raises(Stuck):
        simulation.run(asyncio.Event().wait())


def test_a_thread_answers_later_in_virtual_time() -> None:
    async def asked() -> tuple[int, float]:
        began_s = monotonic_s()
        return await asyncio.to_thread(lambda: 7), monotonic_s() - began_s

    with Simulation(6) as simulation:
        answer, took_s = simulation.run(asked())
    assert answer == 7
    assert took_s > 0

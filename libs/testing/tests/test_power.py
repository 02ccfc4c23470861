"""Replicas that outlive a loss of power of their server, which then knows less than they do."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest
from stretto_bus.bus import Bus
from stretto_dispatcher.service import Dispatcher
from stretto_installation.provision import make_stream
from stretto_messages.gateway import JobCancelled
from stretto_runtime.owner.tenure.ownership import Ownership
from stretto_testing.installation import SimulatedInstallation, until
from stretto_testing.processes.services import Conditions
from stretto_testing.processes.training import BATCH, BATCHES_PER_SHARD, Job
from stretto_testing.simulation import URL, Simulation
from stretto_wire.contract.registry import STATE, STATE_PREFIX, STREAM, partition_of

SAMPLES = 10 * BATCH * BATCHES_PER_SHARD
AWAY_S, OVER_WITHIN_S = 1.0, 60.0


async def lost(simulation: Simulation, stream: str, since_ns: int) -> int:
    """Let a stream lose what was stored since then, with the power of its server; return how many messages it was."""
    simulation.server.kill()
    kept = simulation.server.api.streams[stream]
    end = kept.last_seq
    kept.lose(since_ns)
    await asyncio.sleep(AWAY_S)
    simulation.server.start()
    return end - kept.last_seq


def test_a_partition_is_taken_again_whose_entry_is_lost() -> None:
    async def scene() -> tuple[int, int]:
        bus = await Bus.connect(URL)
        await make_stream(bus, {"name": STATE, "subjects": [f"{STATE_PREFIX}>"], "allow_msg_ttl": True})
        ownership = Ownership(bus, "dispatcher", 1, 2.0, lambda: None)
        await ownership.join()
        first = await ownership.take(0)
        await lost(simulation, STATE, 0)
        await asyncio.sleep(10 * AWAY_S)
        return first, await ownership.take(0)

    with Simulation(0) as simulation:
        first, again = simulation.run(scene())
    assert again > first > 0


@pytest.mark.parametrize("others_share", [0.0, 0.5, 2.0])
def test_a_job_is_trained_although_the_log_has_lost_what_was_handled(tmp_path: Path, others_share: float) -> None:
    """The bucket says that more was handled than the stream has, or had when the job came: what is there now is no
    repetition. Nobody is connected before others have stored so much of what was lost, behind the job.
    """
    first = Job("first", SAMPLES, 1)
    late = next(
        name for name in (f"late-{number}" for number in count()) if partition_of(name) == partition_of("first")
    )

    async def scene() -> bool:
        installation = await SimulatedInstallation.open(simulation, 1.0, 120.0)
        installation.run_service(conditions.maker(Dispatcher), 2)
        await asyncio.sleep(10 * AWAY_S)
        before_ns = simulation.server.now_ns()
        await installation.submit(first, 2)
        assert await until(lambda: first.is_over, OVER_WITHIN_S)
        await asyncio.sleep(AWAY_S)  # until everything is in a snapshot
        gone = await lost(simulation, STREAM, before_ns)
        if others_share:
            for event in (job.submission, *(JobCancelled(job=f"job-{n}") for n in range(int(others_share * gone)))):
                installation.store_at_once(event)
        await asyncio.sleep(10 * AWAY_S)
        end = simulation.server.api.streams[STREAM].last_seq
        await installation.submit(job, 2)
        told = simulation.server.api.streams[STREAM].last_seq - end
        assert told < gone / 2, "owners fill the place of what was lost"
        return await until(lambda: job.is_over, OVER_WITHIN_S)

    job = Job(late, SAMPLES, 1)
    saves_at_once = {"dispatcher": {"snapshot_inputs": 1, "snapshot_s": 0.05}}
    conditions = Conditions(False, 0.0004, 1.0, {}, 120.0, 0.0, tmp_path, saves_at_once)
    with Simulation(0) as simulation:
        assert simulation.run(scene())
    assert job.missing_and_repeated() == (0, 0)

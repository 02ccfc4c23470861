"""A name belongs to one job for ever, although nothing else of the job is left."""

from __future__ import annotations

import asyncio
import time
import zlib
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import stretto_wire as wire
from hypothesis import given
from hypothesis import strategies as st
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import read
from stretto_bus.tasks import end
from stretto_gateway.problems import Problem
from stretto_gateway.service import Gateway
from stretto_gateway.settings import ENDED_BYTES, GatewaySettings
from stretto_gateway.streams.bus import StreamBus
from stretto_gateway.streams.retention import EndedJobs
from stretto_installation.server import EmbeddedServer
from stretto_messages.gateway import JobCancelled
from stretto_runtime.spans.tracing import Tracing
from stretto_runtime.spent_names import KEPT, SPENT, DamagedNames, SpentNames, SpentShard, by_shard, shard_of
from stretto_wire.contract.registry import EVENTS_KEPT_S, STATE

from tests.live_bus import live_bus
from tests.waits import until

from ..gateway_process import age_out

"""the least age that the server takes"""
names = st.text("abcxyz0123456789-", min_size=1, max_size=40)


@given(st.lists(st.sets(names, max_size=20), max_size=5), st.sets(names, max_size=20))
def test_the_set_is_exact(added: list[set[str]], asked: set[str]) -> None:
    spent = SpentNames()
    for group in added:
        for number, part in by_shard(group).items():
            spent.shards[number] = SpentShard(spent.shard(number).joined_by(part), 1)
    told: set[str] = set().union(*added)
    for name in told | asked:
        assert (name in spent) == (name in told)


def test_a_name_costs_few_bytes() -> None:
    found = by_shard(f"nightly-ctr-{number:06d}" for number in range(100_000))
    assert sum(len(SpentShard().joined_by(part)) for part in found.values()) < 5 * 100_000


def test_names_that_cannot_be_read_are_not_taken_for_unused() -> None:
    spent = SpentNames({shard_of("a"): SpentShard(zlib.compress(b"a")[:-2], 7)})
    with pytest.raises(DamagedNames, match="sequence 7"):
        _ = "a" in spent


def spec(name: str) -> wire.JobSpec:
    return wire.JobSpec.parse({"name": name, "model": {"entry": "m:M"}, "dataset": {"samples": 100}})


class Replicas:
    """Gateways in this process, under one clock that a test sets."""

    def __init__(self, server: EmbeddedServer, stack: AsyncExitStack, folder: Path) -> None:
        self.later_s = 0.0
        self._server, self._stack, self._folder = server, stack, folder

    async def start(self, ended_bytes: int = ENDED_BYTES) -> Gateway:
        client = await Client.connect(self._server.url, self._server.login("gateway"))
        self._stack.push_async_callback(client.close)
        bus = StreamBus(Tracing("gateway", self._folder, 1 << 20, 100.0))
        bus.reached(client.bus)
        gateway = Gateway(bus, GatewaySettings(ended_bytes=ended_bytes), lambda: time.time() + self.later_s)
        task = asyncio.create_task(gateway.follow())
        self._stack.push_async_callback(end, task)
        await until(lambda: gateway.follower.ready)
        return gateway


async def entries(client: Client, pattern: str) -> dict[str, bytes]:
    stored = await read(client.bus, STATE, [pattern], deliver_policy="last_per_subject")
    return {entry.subject: entry.data for entry in stored if entry.data}


async def test_of_jobs_of_long_ago_only_the_names_stay_whichever_replica_forgets_them(tmp_path: Path) -> None:
    """Goal: the gateway's memory and bucket are flat but for names, which stay taken. Method: two replicas forget the
    same jobs, of one part of the names, at the same time; after the events have aged out a third one starts."""
    jobs = [name for name in (f"job-{number}" for number in range(5000)) if shard_of(name) == 7][:8]
    async with AsyncExitStack() as stack:
        server, client = await stack.enter_async_context(live_bus(tmp_path))
        for job in jobs:
            await client.publish(wire.JobSubmitted(job=job, spec=spec(job), submitted_by="somebody"))
            await client.publish(JobCancelled(job=job, by="somebody", reason=""))
        replicas = Replicas(server, stack, tmp_path)
        two = [await replicas.start() for _ in range(2)]
        young = "young"
        await client.publish(wire.JobSubmitted(job=young, spec=spec(young), submitted_by="somebody"))
        await until(lambda: all(young in gateway.follower.projection.jobs for gateway in two))
        replicas.later_s = EVENTS_KEPT_S - 3600
        for job in ("younger", "youngest"):  # what is read makes them look
            await client.publish(wire.JobSubmitted(job=job, spec=spec(job), submitted_by="somebody"))
        await until(lambda: not any(gateway.follower.projection.jobs.keys() & set(jobs) for gateway in two))
        assert (await entries(client, f"{KEPT}*")).keys().isdisjoint(f"{KEPT}{job}" for job in jobs)
        ((subject, packed),) = (await entries(client, f"{SPENT}*")).items()
        assert (subject, SpentShard(packed).names) == (f"{SPENT}7", sorted([*jobs]))
        await age_out(client)
        for gateway in (*two, await replicas.start()):
            for job in jobs:
                with pytest.raises(Problem, match="ended long ago"):
                    await gateway.submissions.submit(spec(job), "somebody")
            with pytest.raises(Problem, match=f"nothing but its name is known of the job {jobs[0]}"):
                gateway.views.check_readable(jobs[0], lambda team: True)
            with pytest.raises(Problem, match="there is no job"):
                gateway.views.check_readable(jobs[0], lambda team: team == "ads")


def large(job: str) -> wire.JobSpec:
    environment = {f"V{number}": "x" * 3900 for number in range(15)}
    document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 100}, "environment": environment}
    return wire.JobSpec.parse(document)


async def test_ended_jobs_of_too_many_bytes_leave_and_a_restart_does_not_bring_them_back(tmp_path: Path) -> None:
    """Method: a team's large jobs of 2 MB and another's ended job, under a bound of 1 MiB; a replica starts later."""
    jobs = [f"large-{number:02d}" for number in range(16)]
    async with AsyncExitStack() as stack:
        server, client = await stack.enter_async_context(live_bus(tmp_path))
        await client.publish(wire.JobSubmitted(job="other", spec=spec("other"), submitted_by="s", team="calm"))
        await client.publish(JobCancelled(job="other", by="s", reason=""))
        for job in jobs:
            await client.publish(wire.JobSubmitted(job=job, spec=large(job), submitted_by="s", team="loud"))
            await client.publish(JobCancelled(job=job, by="s", reason=""))
        replicas = Replicas(server, stack, tmp_path)
        first = await replicas.start(1 << 20)
        await client.publish(wire.JobSubmitted(job="young", spec=spec("young"), submitted_by="s"))
        await until(lambda: jobs[0] not in first.follower.projection.jobs)
        # nothing is read while jobs are being forgotten: what is read afterwards tells that it is done
        await client.publish(wire.JobSubmitted(job="youngest", spec=spec("youngest"), submitted_by="s"))
        await until(lambda: "youngest" in first.follower.projection.jobs)
        left = [job for job in jobs if job in first.follower.projection.jobs]
        assert left == jobs[-len(left) :], "the oldest leave"
        assert 3 <= len(left) <= 9, "each counts with its view and with what is retained"
        assert "other" in first.follower.projection.jobs
        second = await replicas.start(1 << 20)
        for gateway in (first, second):
            await until(
                lambda gateway=gateway: gateway.follower.projection.last_seq == first.follower.projection.last_seq
            )
            assert [job for job in jobs if job in gateway.follower.projection.jobs] == left
            with pytest.raises(Problem, match="there is no job large-00"):
                gateway.views.view("large-00")
            with pytest.raises(Problem, match="a job called large-00 ended long ago"):
                await gateway.submissions.submit(large("large-00"), "s", team="loud")
        assert (await entries(client, f"{KEPT}*")).keys() <= {
            f"{KEPT}{job}" for job in (*left, "other", "young", "youngest")
        }


@given(st.lists(st.tuples(names, st.sampled_from("ab"), st.integers(0, 99), st.integers(1, 50)), max_size=40))
def test_ended_jobs_are_within_their_bound_and_the_oldest_of_the_largest_team_leave(
    added: list[tuple[str, str, int, int]],
) -> None:
    ended, left = EndedJobs(100), dict[str, tuple[str, int, int]]()
    for job, team, ended_at_s, size in added:
        if job in left:
            continue
        ended.add(job, team, ended_at_s, size)
        left[job] = team, ended_at_s, size
        for gone in ended.superfluous():
            sums = {each: sum(size for of, _, size in left.values() if of == each) for each in "ab"}
            assert sums[left[gone][0]] == max(sums.values())
            assert left[gone][1] == min(at_s for of, at_s, _ in left.values() if of == left[gone][0])
            del left[gone]
        assert sum(size for _, _, size in left.values()) <= 100
    assert sorted(ended.before(50)) == sorted(job for job, (_, at_s, _) in left.items() if at_s < 50)

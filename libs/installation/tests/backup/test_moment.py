"""A backup taken under load is of one moment: whatever is restored from it goes on exactly."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from installation_backups import empty_server, put_back, taken
from runtime_books import JOBS, feed, joined, settle
from runtime_counting import Counting
from runtime_live import Replicas, running
from stretto_bus import Client
from stretto_bus.faults import Fenced
from stretto_bus.reading.ordered_consumer import read
from stretto_bus.writer import Fence
from stretto_installation.backup import entries
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_runtime.owner.state.snapshots import Mark
from stretto_runtime.restorations import restorations
from stretto_wire.contract.registry import STATE, STATE_PREFIX, STREAM

KEYS, READINGS = 50, 30
BACKUPS = 6


async def test_the_bucket_is_read_as_it_was_at_one_moment(client: Client) -> None:
    """Method: write i goes to key i mod 50, so the content at any revision is known; the bucket is read thirty times
    while a writer is at it without a pause."""
    await client.bus.ask(f"STREAM.PURGE.{STATE}")
    first = int((await client.bus.ask(f"STREAM.INFO.{STATE}"))["state"]["last_seq"]) + 1
    ended = False

    async def write() -> int:
        number = 0
        while not ended:
            ahead = [
                await client.bus.post(f"{STATE_PREFIX}kept.gateway.job-{n % KEYS}", b"%d" % n)
                for n in range(number, number + 100)
            ]
            await asyncio.gather(*ahead)
            number += 100
        return number

    writing = asyncio.create_task(write())
    moments: list[entries.Moment] = []
    async with asyncio.timeout(60):
        while len(moments) < READINGS:
            moments.append(await entries.read_moment(client.bus))
    ended = True
    written = await writing
    assert len({moment.seq for moment in moments}) > READINGS // 2, "nothing was written meanwhile"
    for moment in moments:
        count = moment.seq - first + 1
        assert count <= written
        assert [int(stored.data) for stored in moment.entries] == list(range(max(0, count - KEYS), count))
        assert [stored.seq - first for stored in moment.entries] == [int(stored.data) for stored in moment.entries]


@pytest.mark.night
async def test_backups_of_many_moments_under_load_go_on_exactly(
    server: EmbeddedServer, client: Client, replicas: Replicas, tmp_path: Path
) -> None:
    """Method: three replicas count additions, one is killed meanwhile; six backups at random moments. Each is restored
    into a server with other keys, where a new replica goes on, also with what is added then."""
    chance = random.Random(13)
    first = replicas.start(lease_s="1", snapshot_s="0.3")
    for _ in range(2):
        replicas.start(lease_s="1", snapshot_s="0.3")
    await joined(client, 3)
    feeding = asyncio.create_task(feed(client, 6, seed=1))
    ends: list[int] = []
    for number in range(BACKUPS):
        await asyncio.sleep(chance.uniform(0.1, 0.9))
        if number == BACKUPS // 2:
            first.kill()
        manifest = await taken(client, tmp_path / f"backup{number}")
        ends.append(manifest.stream(STREAM).last_seq)
    fed = await feeding
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]
    for number in range(BACKUPS):
        async with empty_server(tmp_path / f"server{number}") as (other, restored):
            await put_back(restored, tmp_path / f"backup{number}")
            async with running(Counting, other, tmp_path / f"heir{number}"):
                later = await feed(restored, 0.5, seed=100 + number)
                found = await settle(restored, len(JOBS) if number else 1)
            found.check(later)
            assert found.inputs - later <= fed


async def test_the_streams_are_what_they_were(client: Client, tmp_path: Path) -> None:
    """Method: messages with gaps (a lifetime that ended) and headers, compared one by one after the restoration."""
    for number in range(40):
        lifetime = {"Nats-TTL": "1s" if number % 7 == 0 else "1h"} if number % 3 else {}
        await client.bus.store(f"evt.v1.gateway.job-cancelled.job-{number}", b"%d" % number, {"ce-id": "a", **lifetime})
    async with asyncio.timeout(60):
        while len(before := await read(client.bus, STREAM, [">"])) > 36:
            await asyncio.sleep(0.1)
    await taken(client, tmp_path / "backup")
    async with empty_server(tmp_path / "other") as (_, restored):
        await put_back(restored, tmp_path / "backup")
        await provision(restored.bus)
        after = await read(restored.bus, STREAM, [">"])
        assert [(*each[:3], dict(each.headers), each.data) for each in after] == [
            (*each[:3], dict(each.headers), each.data) for each in before
        ]
        assert await restored.last_seq() == await client.last_seq()
        assert await restored.bus.store("fence.dispatcher.0", b"") == await client.last_seq() + 1


async def test_leases_end_and_no_epoch_of_before_is_given_again(client: Client, tmp_path: Path) -> None:
    """Method: a bucket with a member, an owner, a clean mark and a cursor; after the restoration only the last two are
    there, the mark is not clean, and a write under any old epoch is refused although a new owner has taken over."""
    mark, owner = f"{STATE_PREFIX}mark.dispatcher.3", f"{STATE_PREFIX}owner.dispatcher.3"
    await client.bus.store(mark, Mark(7, 0, True).encode(mark))
    await client.bus.store(f"{STATE_PREFIX}member.dispatcher.a", b"1", {"Nats-TTL": "60s"})
    epoch = await client.bus.store(owner, b"a", Fence(owner, 0).headers())
    await client.bus.store(f"{STATE_PREFIX}kept.gateway.job-a", b"{}")
    manifest = await taken(client, tmp_path / "backup")
    async with empty_server(tmp_path / "other") as (_, restored):
        await put_back(restored, tmp_path / "backup")
        found = {stored.subject: stored.data for stored in await read(restored.bus, STATE, [">"])}
        [restoration] = await restorations(restored.bus)
        assert (restoration.log_seq, restoration.taken_at_s) == (manifest.stream(STREAM).last_seq, manifest.taken_at_s)
        record = f"{STATE_PREFIX}restoration.{restoration.log_seq}"
        assert found.keys() == {mark, f"{STATE_PREFIX}kept.gateway.job-a", record}
        assert Mark.decode(mark, found[mark]) == Mark(7, 0, False)
        taken_over = await restored.bus.store(owner, b"b", Fence(owner, 0).headers())
        assert taken_over > manifest.stream(STATE).last_seq + 1_000_000
        with pytest.raises(Fenced):
            await restored.bus.store(mark, b"", Fence(owner, epoch).headers())

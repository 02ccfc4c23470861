"""Comparison of the counting service's inputs and outputs in the stream with the expected ones.

Each input adds a number to its job; each output carries the job's running count and sum. A lost, doubled or reordered
input or output breaks the sequence of outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime_counting import add
from stretto_bus import BusFault, Client, Event
from stretto_bus.reading.ordered_consumer import read
from stretto_wire.contract.registry import STATE, STATE_PREFIX, partition_of

if TYPE_CHECKING:
    from runtime_live import Replicas

UNSAVED = {"lease_s": "1", "snapshot_s": "60", "snapshot_inputs": "1000000"}
"""Settings of a replica that writes no snapshot before it is killed: its successor replays everything."""

JOBS = [f"job-{number}" for number in range(40)]


@dataclass
class Books:
    """Content of the stream, per job: the numbers added, the (count, sum) published, and every input's id."""

    added: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    counted: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    inputs: set[str] = field(default_factory=set)
    doubled: list[str] = field(default_factory=list)
    """A line for each message whose id an earlier one has"""

    @property
    def settled(self) -> bool:
        return not self.missing()

    def missing(self) -> list[str]:
        """A line for each job with fewer outputs than inputs."""
        return [
            f"{job} (partition {partition_of(job)}): {len(numbers)} inputs, {len(self.counted[job])} outputs"
            for job, numbers in self.added.items()
            if len(self.counted[job]) < len(numbers)
        ]

    def check(self, accepted: set[str]) -> None:
        """Everything accepted is there, everything there was handled once and in order."""
        assert not self.doubled, "\n".join(self.doubled)
        assert accepted <= self.inputs, f"{len(accepted - self.inputs)} accepted inputs are lost"
        for job, numbers in self.added.items():
            assert self.counted[job] == expected(numbers), job


async def books(client: Client) -> Books:
    found, first = Books(), dict[str, Event]()
    async for event in client.events(follow=False):
        message_id = event.headers["ce-id"]
        earlier = first.setdefault(message_id, event)
        if earlier is not event:
            stored = f"{earlier.seq} at {earlier.time_s:.3f} and {event.seq} at {event.time_s:.3f}"
            found.doubled.append(f"{event.subject} {message_id}: {stored}")
        if event.subject.startswith("evt.v1.gateway"):
            found.inputs.add(message_id)
            found.added[event.message.job].append(int(event.message.reason))
        else:
            found.counted[event.message.job].append((event.message.samples_done, event.message.samples_total))
    return found


def expected(added: list[int]) -> list[tuple[int, int]]:
    return list(zip(range(1, len(added) + 1), itertools.accumulate(added), strict=True))


async def feed(
    client: Client,
    seconds: float,
    seed: int,
    jobs: Sequence[str] = JOBS,
    value_below: int = 600,
    enough: asyncio.Event | None = None,
) -> set[str]:
    """Publish additions at some hundreds a second; the ids of those that the stream has accepted.

    It ends after ``seconds``, or as soon as ``enough`` is set.
    """
    randomness = random.Random(seed)
    end = asyncio.get_running_loop().time() + seconds
    accepted: set[str] = set()
    serial = 0

    async def publish(message_id: str) -> None:
        with contextlib.suppress(BusFault):  # not accepted, or nobody knows
            await client.publish(add(randomness.choice(jobs), randomness.randrange(value_below)), message_id)
            accepted.add(message_id)

    while asyncio.get_running_loop().time() < end and not (enough and enough.is_set()):
        await asyncio.gather(*(publish(f"feed:{seed}.{serial + n}") for n in range(5)))
        serial += 5
        await asyncio.sleep(0.01)
    return accepted


async def settle(client: Client, jobs: int = 1, timeout_s: float = 60.0, replicas: Replicas | None = None) -> Books:
    """Wait until as many outputs as inputs are stored.

    Raises:
        AssertionError: they did not become as many; says what is missing where, and what ``replicas`` say.
    """
    found, told = Books(), "no books could be read"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    found, told = await books(client), "reading the books did not end"
                    if found.settled and len(found.counted) >= jobs:
                        return found
                    told = "as of the last look"
                except BusFault as fault:  # the server may just be coming back
                    told = f"the books could not be read any more: {fault}"
                await asyncio.sleep(0.3)
    except TimeoutError:
        owners = await read(client.bus, STATE, [f"{STATE_PREFIX}owner.>"], deliver_policy="last_per_subject")
        held = [f"{stored.subject}: {stored.data.decode()} (revision {stored.seq})" for stored in owners]
        said = [json.dumps(report) for report in replicas.reports()] if replicas else []
        lines = [f"not settled within {timeout_s} s; {told}", *found.missing(), *held, *said]
        raise AssertionError("\n".join(lines)) from None


async def joined(client: Client, members: int) -> None:
    """Until so many replicas have joined: on a busy machine a start takes seconds."""
    async with asyncio.timeout(60):
        while True:
            subject = f"{STATE_PREFIX}member.dispatcher.*"
            present = await read(client.bus, STATE, [subject], deliver_policy="last_per_subject")
            if sum(stored.data == b"1" for stored in present) >= members:
                return
            await asyncio.sleep(0.1)


async def dead_owner(
    client: Client, replicas: Replicas, seconds: float = 1.0, seed: int = 1, value_below: int = 600, **settings: str
) -> tuple[set[str], Books]:
    """A replica has decided and published, saved nothing of it, and is dead; what it was fed, and the books."""
    owner = replicas.start(**{**UNSAVED, **settings})
    await joined(client, 1)
    fed = await feed(client, seconds, seed=seed, value_below=value_below)
    found = await settle(client)
    owner.kill()
    await asyncio.to_thread(owner.wait, 20)
    return fed, found

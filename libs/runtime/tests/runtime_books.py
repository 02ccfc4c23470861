"""What the stream holds of inputs and outputs of the counting service, and what it should hold.

Each input adds a number to its job; each output carries the job's running count and sum. A lost, doubled or reordered
input or output breaks the sequence of outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime_counting import add
from stretto_runtime import BusFault, Client
from stretto_runtime.bus import STATE, STATE_PREFIX
from stretto_runtime.log import read

JOBS = [f"job-{number}" for number in range(40)]


@dataclass
class Books:
    """Of the stream, per job: the numbers added and the (count, sum) published; every input's id."""

    added: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    counted: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    inputs: set[str] = field(default_factory=set)
    doubled: int = 0
    """how many ids came more than once"""

    @property
    def settled(self) -> bool:
        return sum(map(len, self.added.values())) <= sum(map(len, self.counted.values()))

    def check(self, accepted: set[str]) -> None:
        """Everything accepted is there, everything there was handled once and in order."""
        assert self.doubled == 0
        assert accepted <= self.inputs, f"{len(accepted - self.inputs)} accepted inputs are lost"
        for job, numbers in self.added.items():
            assert self.counted[job] == expected(numbers), job


async def books(client: Client) -> Books:
    found, ids = Books(), set[str]()
    async for event in client.events(follow=False):
        message_id = event.headers["ce-id"]
        found.doubled += message_id in ids
        ids.add(message_id)
        if event.subject.startswith("evt.v1.gateway"):
            found.inputs.add(message_id)
            found.added[event.message.job].append(int(event.message.reason))
        else:
            found.counted[event.message.job].append((event.message.samples_done, event.message.samples_total))
    return found


def expected(added: list[int]) -> list[tuple[int, int]]:
    return list(zip(range(1, len(added) + 1), itertools.accumulate(added), strict=True))


async def feed(client: Client, seconds: float, seed: int, jobs: Sequence[str] = JOBS) -> set[str]:
    """Publish additions at some hundreds a second; the ids of those that the stream has accepted."""
    randomness = random.Random(seed)
    end = asyncio.get_running_loop().time() + seconds
    accepted: set[str] = set()
    serial = 0

    async def publish(message_id: str) -> None:
        with contextlib.suppress(BusFault):  # not accepted, or nobody knows
            await client.publish(add(randomness.choice(jobs), randomness.randrange(600)), message_id)
            accepted.add(message_id)

    while asyncio.get_running_loop().time() < end:
        await asyncio.gather(*(publish(f"feed:{seed}.{serial + n}") for n in range(5)))
        serial += 5
        await asyncio.sleep(0.01)
    return accepted


async def settle(client: Client, jobs: int = 1, timeout_s: float = 40) -> Books:
    """Wait until as many outputs as inputs are stored."""
    async with asyncio.timeout(timeout_s):
        while True:
            with contextlib.suppress(BusFault):  # the server may just be coming back
                found = await books(client)
                if found.settled and len(found.counted) >= jobs:
                    return found
            await asyncio.sleep(0.3)


async def joined(client: Client, members: int) -> None:
    """Until so many replicas have joined: on a busy machine a start takes seconds."""
    async with asyncio.timeout(30):
        while True:
            subject = f"{STATE_PREFIX}member.dispatcher.*"
            present = await read(client.bus, STATE, [subject], deliver_policy="last_per_subject")
            if sum(stored.data == b"1" for stored in present) >= members:
                return
            await asyncio.sleep(0.1)

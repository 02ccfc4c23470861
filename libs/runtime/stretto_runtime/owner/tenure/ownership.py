"""Ownership of partitions: members that renew a lease, a pure assignment, and compare-and-swap.

Nothing here decides who may write; the fence does. A wrong opinion about members costs a detour, no data.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable

import structlog
from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault, Fenced
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored, read
from stretto_bus.writer import Fence
from stretto_wire.contract.registry import STATE, STATE_PREFIX
from stretto_wire.surroundings import new_id

ALIVE, LEAVING = b"1", b"0"
"""Contents of a member's entry. Who leaves holds what it has not handed over yet, and gets nothing more."""

log = structlog.get_logger("stretto.ownership")


def assign(members: Iterable[str], partitions: int) -> dict[int, str]:
    """Capped rendezvous hashing: the same answer in every replica, at most ceil(partitions / members) each.

    Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998, with a cap: pairs of partition and
    member are granted from the highest score down, as long as the member has room.
    """
    names = sorted(set(members))
    if not names:
        return {}
    room = dict.fromkeys(names, math.ceil(partitions / len(names)))
    scored = sorted(
        ((_score(name, partition), name, partition) for name in names for partition in range(partitions)), reverse=True
    )
    owners: dict[int, str] = {}
    for _, name, partition in scored:
        if partition not in owners and room[name] > 0:
            owners[partition] = name
            room[name] -= 1
    return owners


def _score(member: str, partition: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{member}/{partition}".encode(), digest_size=8).digest())


class Ownership:
    """Membership of one replica and the owner entries of its service, both watched."""

    def __init__(self, bus: Bus, service: str, partitions: int, lease_s: float, changed: Callable[[], None]) -> None:
        self.member = f"{service}-{new_id(12)}"
        self.members: set[str] = set()
        self.leaving: set[str] = set()
        """The members that hand everything over"""
        self._content = ALIVE
        self._renewed_s: dict[str, float] = {}
        """Member -> time of its last renewal, on the loop's clock"""
        self._swept_s = 0.0
        self.owners: dict[int, tuple[str, int]] = {}
        """Partition -> (holder or "", revision)"""
        self._bus = bus
        self._service = service
        self._partitions = partitions
        self._numbers = {str(number): number for number in range(partitions)}
        self._lease_s = lease_s
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []
        self._consumer: OrderedConsumer | None = None
        self._watching: asyncio.Task[None] | None = None
        self.refusal = ""
        self.fault = ""
        """The reason why the last renewal of our lease was not stored: then nothing else is."""

    async def join(self) -> None:
        """Become a member and learn the present entries."""
        await self._renew()
        self._consumer = await OrderedConsumer.open(self._bus, STATE, self._keys, deliver_policy="last_per_subject")
        read_count = 0
        while read_count < self._consumer.backlog:
            for stored in await self._consumer.batch():
                read_count += 1
                self._learn(stored)
            if self._consumer.pending == 0:
                break
        self._watching = asyncio.create_task(self._watch(self._consumer))
        self._tasks = [asyncio.create_task(self._renewing())]
        self._bus.on_reconnect.append(self._reconnected)

    async def hand_over(self) -> None:
        """Say that this member leaves: each of its partitions has its successor as soon as it is released."""
        self._content = LEAVING
        with contextlib.suppress(BusFault):  # then they follow once the entry is gone
            await self._renew()

    async def leave(self) -> None:
        """Stop renewing, and withdraw at once."""
        if self._reconnected in self._bus.on_reconnect:
            self._bus.on_reconnect.remove(self._reconnected)
        for task in (*self._tasks, *([self._watching] if self._watching is not None else [])):
            task.cancel()
        if self._consumer is not None:
            await self._consumer.close()
        with contextlib.suppress(BusFault):
            await self._bus.store(self._member_key, b"", {"KV-Operation": "DEL", "Nats-TTL": "60s"})

    async def refresh(self) -> None:
        """Read the members again: the marker of one that died while we were away may be gone already."""
        self._set_members(await read(self._bus, STATE, [self._member_keys], deliver_policy="last_per_subject"))

    def _set_members(self, found: Iterable[Stored]) -> None:
        self.members.clear()
        self.leaving.clear()
        for stored in found:
            self._learn(stored)
        self._changed()

    async def alone(self) -> bool:
        """Read the members again; returns whether there is no other."""
        await self.refresh()
        return not self.members - {self.member}

    def mine(self) -> set[int]:
        """The partitions that this replica should own."""
        owners = assign(self.members - self.leaving | {self.member}, self._partitions)
        return {partition for partition, name in owners.items() if name == self.member}

    def holder(self, partition: int) -> str:
        """The member that its entry names; empty: none."""
        return self.owners.get(partition, ("", 0))[0]

    def takeable(self, partition: int) -> bool:
        """Return True if nobody holds the partition, or this replica does, or a former member."""
        holder = self.holder(partition)
        return holder in ("", self.member) or holder not in self.members

    def held(self) -> set[int]:
        """The partitions whose entry names us, even if the answer to our take was lost."""
        return {partition for partition, (holder, _) in self.owners.items() if holder == self.member}

    def usurped(self, partition: int, epoch: int) -> bool:
        """True if an entry later than ``epoch`` names another member."""
        holder, revision = self.owners.get(partition, ("", 0))
        return revision > epoch and holder != self.member

    def owner_key(self, partition: int) -> str:
        return f"{STATE_PREFIX}owner.{self._service}.{partition}"

    async def take(self, partition: int) -> int:
        """Write our name by compare-and-swap; returns the epoch.

        Raises:
            Fenced: another replica was faster.
        """
        key = self.owner_key(partition)
        _, revision = self.owners.get(partition, ("", 0))
        epoch = await self._bus.store(key, self.member.encode(), Fence(key, revision).headers())
        self.owners[partition] = (self.member, epoch)
        return epoch

    async def refuse(self, partition: int, epoch: int, why: str) -> None:
        """Give back a partition that this version cannot continue; the runner then waits for replicas that can."""
        self.refusal = self.refusal or why
        await self.release(partition, epoch)
        self._changed()

    async def release(self, partition: int, epoch: int) -> None:
        """Empty the entry, if it is still ours."""
        key = self.owner_key(partition)
        with contextlib.suppress(Fenced):
            revision = await self._bus.store(key, b"", Fence(key, epoch).headers())
            self.owners[partition] = ("", revision)

    @property
    def _keys(self) -> list[str]:
        return [self._member_keys, f"{STATE_PREFIX}owner.{self._service}.*"]

    @property
    def _member_keys(self) -> str:
        return f"{STATE_PREFIX}member.{self._service}.*"

    @property
    def _member_key(self) -> str:
        return f"{STATE_PREFIX}member.{self._service}.{self.member}"

    async def _renew(self) -> None:
        await self._bus.store(self._member_key, self._content, {"Nats-TTL": f"{math.ceil(self._lease_s)}s"})

    def _reconnected(self) -> None:
        self._tasks.append(asyncio.create_task(self._refresh_surely()))

    async def _refresh_surely(self) -> None:
        while True:
            try:
                await self._begin_again()
                return
            except BusFault as fault:
                log.warning("members not read yet", fault=str(fault))
                await asyncio.sleep(1)

    async def _begin_again(self) -> None:
        """Learn everything anew: a server that lost power may have lost what we know, and counts from there again."""
        found = await read(self._bus, STATE, self._keys, deliver_policy="last_per_subject")
        last_seq = max((stored.seq for stored in found), default=0)
        consumer = await OrderedConsumer.open(self._bus, STATE, self._keys, last_seq + 1)
        before, self._consumer = self._consumer, consumer
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.create_task(self._watch(consumer))
        self.owners.clear()
        self._set_members(found)
        if before is not None:
            await before.close()

    async def _renewing(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 4)
            try:
                await self._renew()
            except BusFault as fault:
                self.fault = str(fault)
                log.warning("lease not renewed", fault=self.fault)
            else:
                self.fault = ""
                self._drop_silent()

    def _drop_silent(self) -> None:
        """Forget members that stopped renewing but whose entries stay.

        The server's expiry alone is not enough: after a crash it may bring back expired entries without their expiry.
        A replica that was frozen itself has observed no renewal, so it judges nobody.
        """
        now = asyncio.get_running_loop().time()
        frozen, self._swept_s = now - self._swept_s > self._lease_s, now
        if frozen or not self._bus.connected:
            self._renewed_s = dict.fromkeys(self.members, now)
            return
        silent = {name for name in self.members if now - self._renewed_s.get(name, now) > 2 * self._lease_s}
        silent.discard(self.member)
        if silent:
            log.warning("members without a renewal", members=sorted(silent))
            self.members -= silent
            self._changed()

    async def _watch(self, consumer: OrderedConsumer) -> None:
        while True:
            batch = await consumer.batch()
            if any([self._learn(stored) for stored in batch]):
                self._changed()

    def _learn(self, stored: Stored) -> bool:
        """Apply one entry; returns whether it changed anything."""
        kind, _, rest = stored.subject.removeprefix(STATE_PREFIX).partition(".")
        name = rest.rpartition(".")[2]
        gone = "Nats-Marker-Reason" in stored.headers or "KV-Operation" in stored.headers
        if kind == "member" and not gone and stored.data not in (ALIVE, LEAVING):  # a member renews its own soon
            log.error("an entry of no member is passed over", subject=stored.subject, value=repr(stored.data[:100]))
            return False
        if kind == "member":
            before = name in self.members, name in self.leaving
            self.members.discard(name)
            self.leaving.discard(name)
            self._renewed_s.pop(name, None)
            if not gone:
                self.members.add(name)
                self._renewed_s[name] = asyncio.get_running_loop().time()
            if stored.data == LEAVING:
                self.leaving.add(name)
            return before != (name in self.members, name in self.leaving)
        partition = self._numbers.get(name)
        if partition is None:  # not from a replica: it must not end the watching
            log.error("an entry of no partition is passed over", subject=stored.subject, value=repr(stored.data[:100]))
            return False
        holder = "" if gone else stored.data.decode("utf-8", "replace")  # unreadable: nobody, so anybody may take it
        if stored.seq <= self.owners.get(partition, ("", 0))[1]:
            return False
        self.owners[partition] = holder, stored.seq
        return True

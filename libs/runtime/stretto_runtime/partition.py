"""One partition of one service at its owner: take, load, scan, replay, live, leave (RUNTIME.md, steps 2 to 9).

A session ends in one of three ways: asked to leave (everything stored, the entry released), lost to another owner, or
broken (connection, full stream, a higher fence). A broken session is begun again from ``take``: the same path that
follows a death, so there is only one way back and it is the one that is tested.
"""

from __future__ import annotations

import asyncio

import structlog

from stretto_runtime.eras import Era, fence_subject
from stretto_runtime.faults import BusFault, Fenced, PartitionLost, Refusal, RuntimeFault
from stretto_runtime.handling import Handling
from stretto_runtime.log import Fence
from stretto_runtime.machines import Machines
from stretto_runtime.rpc import Journal
from stretto_runtime.session import Session
from stretto_runtime.shell import Shell
from stretto_runtime.snapshots import Snapshots
from stretto_runtime.succession import finish, published_ids
from stretto_runtime.writer import Writer, learn_streams

GIVE_BACK_AGAIN_S = 1.0

log = structlog.get_logger("stretto.partition")


class Partition:
    """Owner of partition ``number``."""

    def __init__(self, shell: Shell, number: int) -> None:
        self.number = number
        self.live = False
        self.epoch = 0
        self.journal: Journal | None = None
        self.machines: Machines | None = None
        self.fault = ""
        """why it is not live, for /readyz"""
        self._shell = shell
        self.stopping = False
        self.wake = asyncio.Event()
        self.connection_broke = False

    async def own(self) -> None:
        """Hold the partition until asked to leave or lost. Returns; raises only when cancelled."""
        delay_s = 0.05
        while not self.stopping:
            try:
                await self._session()
                return
            except (BusFault, PartitionLost) as fault:
                ownership = self._shell.ownership
                self.fault = str(fault)
                if isinstance(fault, Fenced):
                    self._shell.metrics.fenced.inc()
                log.warning("partition session ended", partition=self.number, epoch=self.epoch, fault=str(fault))
                usurped = self.epoch > 0 and ownership.usurped(self.number, self.epoch)
                if usurped or isinstance(fault, PartitionLost):
                    return
            except Refusal as fault:
                await self._shell.ownership.refuse(self.number, self.epoch, str(fault))
                self.fault = str(fault)
                return
            except RuntimeFault as fault:
                self.fault = str(fault)
                log.error("partition cannot be served", partition=self.number, fault=str(fault))
                delay_s = 5.0
            except Exception as error:  # a bug of ours or of the service: say so, do not spin, do not give up
                self.fault = f"{type(error).__name__}: {error}"
                log.exception("partition cannot be served", partition=self.number, error=self.fault)
                delay_s = 5.0
            await asyncio.sleep(delay_s)
            delay_s = min(5.0, 2 * delay_s)
            if not self._shell.ownership.takeable(self.number):
                return

    async def give_back(self) -> None:
        """Empty an entry that names us though we serve nothing: the answer to a take or to a release was lost.

        Nobody else would: we are alive, so others leave our entries alone. Tries once; whoever sees the entry still
        naming us calls again.
        """
        ownership = self._shell.ownership
        try:
            await ownership.release(self.number, ownership.owners[self.number][1])
            log.info("gave back what was held unserved", partition=self.number)
        except BusFault as fault:
            log.warning("entry not given back yet", partition=self.number, fault=str(fault))
        if self.number in ownership.held():
            await asyncio.sleep(GIVE_BACK_AGAIN_S)

    def leave(self) -> None:
        """Ask to leave gracefully; ``own`` returns when it is done."""
        self.stopping = True
        self.wake.set()

    def _reconnected(self) -> None:
        self.connection_broke = True
        self.wake.set()

    async def _session(self) -> None:
        shell, service = self._shell, self._shell.service
        self.connection_broke = False
        await learn_streams(shell.bus)
        self.epoch = await shell.ownership.take(self.number)
        owner_key = shell.ownership.owner_key(self.number)
        snapshots = Snapshots(shell.bus, service.name, self.number, owner_key, self.epoch)
        left_after = await snapshots.left_after()
        subject = fence_subject(service.name, self.number)
        body = Era.of(service).body(shell.ownership.member, self.epoch, left_after)
        fence = Fence(subject, await shell.bus.store(subject, body))
        loaded = await snapshots.load(fence.seq)
        if left_after is None:
            loaded = await finish(shell, self.number, loaded, snapshots, fence)
        machines = Machines(service)
        try:
            await machines.load_in_thread(loaded.documents)
        except Refusal:
            if left_after is not None:
                await snapshots.mark(loaded.cursor, 0, clean=True)  # we have begun nothing either
            raise
        self.machines = machines
        published = await published_ids(shell.bus, service.name, self.number, loaded.cursor.out_seq + 1, fence.seq)
        writer = Writer(shell.bus, fence, self.wake)
        subject = f"journal.{service.name}.{self.number}"
        journal = Journal(writer, subject, service.settings.journal_ttl_s, self.wake)
        handling = Handling(shell, self.number, machines, writer, published, fence.seq, loaded.attempt)
        session = Session(self, shell, handling, snapshots, journal, loaded.cursor, fence)
        shell.metrics.takeovers.inc()
        shell.bus.on_reconnect.append(self._reconnected)
        try:
            await session.run()
        finally:
            shell.bus.on_reconnect.remove(self._reconnected)
            await writer.close()

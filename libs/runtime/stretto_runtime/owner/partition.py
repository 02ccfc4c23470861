"""One partition of one service at its owner: take it, finish what a predecessor began, serve, hand over.

A session ends in one of three ways: asked to leave (everything stored, the entry released), lost to another owner, or
broken (connection, full stream, a higher fence). A broken session begins again with taking the partition. The same path
follows a death: there is a single way back, which tests take.

The steps are those of the README's section "Protocol".
"""

from __future__ import annotations

import asyncio

import structlog
from stretto_bus.faults import BusFault, Fault, Fenced
from stretto_bus.reading.lost_end import is_replaced, kept_until
from stretto_bus.writer import Fence, Writer, learn_streams

from stretto_runtime.owner.context import Context
from stretto_runtime.owner.dead_letters import DeadLetters
from stretto_runtime.owner.handling import Handling, Ports, Takeover
from stretto_runtime.owner.journal import Journal
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.reports import Reports
from stretto_runtime.owner.session import Orders, Parts, Session
from stretto_runtime.owner.state.recovery import Loaded, load
from stretto_runtime.owner.state.snapshots import Snapshots
from stretto_runtime.owner.tenure.succession import finish, published_ids
from stretto_runtime.owner.tenure.terms import Term, fence_subject
from stretto_runtime.process.faults import Contradiction, PartitionLost, VersionRefusal

GIVE_BACK_AGAIN_S = 1.0

log = structlog.get_logger("stretto.partition")


class Partition:
    """Partition ``number`` at its owner."""

    def __init__(self, context: Context, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.machines: Machines | None = None
        self._context = context
        self._orders = Orders(asyncio.Event(), asyncio.Event())
        self._session: Session | None = None
        self._fault = ""

    @property
    def session(self) -> Session | None:
        """The session that is live, if one is."""
        return self._session if self._session is not None and self._session.live else None

    @property
    def live(self) -> bool:
        """True if it handles new inputs."""
        return self.session is not None

    @property
    def lost(self) -> frozenset[str]:
        """The keys whose saved state is damaged: nothing is handled for them."""
        return self.machines.lost if self.machines is not None else frozenset()

    @property
    def no_way_back(self) -> dict[str, str]:
        """The keys that the machine's storage version cannot continue, with the reason."""
        return self.machines.no_way_back if self.machines is not None else {}

    @property
    def fault(self) -> str:
        """Why it is not live, for /readyz."""
        return "" if self.live else self._fault

    async def own(self) -> None:
        """Hold the partition until asked to leave or lost. Returns; raises only when cancelled."""
        delay_s = 0.05
        while not self._orders.stop.is_set():
            try:
                await self._take_and_serve()
                self._fault = ""
                return
            except (BusFault, PartitionLost) as fault:
                ownership = self._context.ownership
                self._fault = str(fault)
                if isinstance(fault, Fenced):
                    self._context.metrics.fenced.inc()
                log.warning("partition session ended", partition=self.number, epoch=self.epoch, fault=str(fault))
                usurped = self.epoch > 0 and ownership.usurped(self.number, self.epoch)
                if usurped or isinstance(fault, PartitionLost):
                    return
            except VersionRefusal as fault:
                await self._context.ownership.refuse(self.number, self.epoch, str(fault))
                self._fault = str(fault)
                return
            except Fault as fault:
                self._fault = str(fault)
                log.error("partition cannot be served", partition=self.number, fault=str(fault))
                delay_s = 5.0
            except Exception as error:  # a bug of ours or of the service: report it, do not spin, do not give up
                self._fault = f"{type(error).__name__}: {error}"
                log.exception("partition cannot be served", partition=self.number, error=self._fault)
                delay_s = 5.0
            await asyncio.sleep(delay_s)
            delay_s = min(5.0, 2 * delay_s)
            if not self._context.ownership.takeable(self.number):
                return

    async def give_back(self) -> None:
        """Empty an entry that names us though we serve nothing: the answer to a take or a release was lost.

        Nobody else would do it, because others leave the entries of living members alone. It tries once; the runner
        calls again as long as the entry names us.
        """
        ownership = self._context.ownership
        try:
            await ownership.release(self.number, ownership.owners[self.number][1])
            log.info("gave back what was held unserved", partition=self.number)
        except BusFault as fault:
            log.warning("entry not given back yet", partition=self.number, fault=str(fault))
        if self.number in ownership.held():
            await asyncio.sleep(GIVE_BACK_AGAIN_S)

    def leave(self) -> None:
        """Ask to leave gracefully; ``own`` returns when it is done."""
        self._orders.stop.set()
        self._orders.wake.set()

    async def _finish(self, loaded: Loaded, snapshots: Snapshots, fence: Fence) -> Loaded:
        """Finish what earlier owners began. A key is lost that fell back, and that this code decides otherwise since.

        Raises:
            Refusal: this code cannot continue another key; nothing was stored.
        """
        while True:
            try:
                return await finish(self._context, self.number, loaded, snapshots, fence)
            except Contradiction as fault:
                if fault.key not in loaded.uncertain:
                    raise
                loaded = loaded.without(fault.key)

    async def _kept(self, loaded: Loaded, fence: Fence) -> int | None:
        """Return the last sequence that the log kept where its server has lost its end; None: it has everything."""
        bus, last = self._context.bus, loaded.last_input(f"journal.{self._context.service.name}.{self.number}")
        if fence.seq > loaded.reached and not await is_replaced(bus, last):
            return None
        kept = await kept_until(bus, loaded.place, last, fence.seq)
        log.error("the server lost the end of the log; what was handled stays", kept=kept, handled_to=loaded.reached)
        return kept

    async def _take_and_serve(self) -> None:
        context, service = self._context, self._context.service
        await learn_streams(context.bus)
        self.epoch = await context.ownership.take(self.number)
        owner_key = context.ownership.owner_key(self.number)
        snapshots = Snapshots(context.bus, service.name, self.number, owner_key, self.epoch)
        handled_to = await snapshots.clean_shutdown()
        subject = fence_subject(service.name, self.number)
        body = Term.of(service).body(context.ownership.member, self.epoch, handled_to)
        fence = Fence(subject, await context.bus.store(subject, body))
        writer = Writer(context.bus, fence, self._orders.wake)
        loaded = await load(snapshots, service, fence.seq, context.bus.facts_kept_s)
        if (kept := await self._kept(loaded, fence)) is not None:
            handled_to, loaded = None, loaded.rewound(kept)
            body = Term.of(service).body(context.ownership.member, self.epoch, None)
            fence = Fence(subject, await context.bus.store(subject, body, fence.headers()))
            writer = Writer(context.bus, fence, self._orders.wake)
        await DeadLetters(context, writer).set_aside(loaded.damages)  # before anything replaces them
        if kept is not None:  # else a successor would rewind what we handle now
            await snapshots.save(loaded.documents, loaded.cursor)
            await snapshots.mark(loaded.cursor, loaded.attempt)
        if handled_to is None or loaded.fell_back:
            loaded = await self._finish(loaded, snapshots, fence)
        machines = Machines(service)
        machines.lost = loaded.lost
        try:
            await machines.load_in_thread(loaded.documents)
        except VersionRefusal:
            if handled_to is not None and not loaded.fell_back:
                await snapshots.mark(loaded.cursor, 0, clean=True)  # nothing was begun here
            raise
        machines.dirty.update(loaded.uncertain)  # the next snapshot replaces what is damaged
        self.machines = machines
        published = await published_ids(context.bus, service.name, self.number, loaded.cursor.out_seq + 1, fence.seq)
        subject = f"journal.{service.name}.{self.number}"
        journal = Journal(writer, subject, service.settings.journal_ttl_s, self._orders.wake)
        reports = Reports(context.bus, context.routes.telemetry(self.number), loaded.cursor.reports)
        takeover = Takeover(self.number, fence.seq, loaded.attempt, published)
        letters = DeadLetters(context, writer)
        handling = Handling(context, takeover, machines, Ports(writer, letters, reports, context.bus.send))
        parts = Parts(self.number, self.epoch, fence, loaded.cursor, handling, writer, snapshots, journal, reports)
        self._session = Session(context, parts, self._orders)
        context.metrics.takeovers.inc()
        try:
            await self._session.run()
        finally:
            self._session = None
            await writer.close()

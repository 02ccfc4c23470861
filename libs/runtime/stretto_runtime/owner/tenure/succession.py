"""Finish what a dead owner of other settings or other code began: as it would have done, or not at all.

Between its last snapshot and our fence a dead owner may have decided inputs, and its outputs stand. Under the same
settings and code a replay makes the same decisions; that is the usual way (``Session``). Under other settings those
inputs are decided under the old ones and saved, and only what follows is decided under ours. Under other code our code
decides them, and the results are compared with everything that was published. If one differs, or one is missing in
between, the partition is refused, because its state would contradict what is published.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace

import structlog
from stretto_bus.bus import Bus
from stretto_bus.reading.ordered_consumer import Stored, read, scan
from stretto_bus.writer import Fence, Writer
from stretto_wire.contract.registry import PARTITIONS, STATE, STATE_PREFIX, STREAM

from stretto_runtime.inputs import CLUSTER, CLUSTER_PARTITION, input_seq, of_cluster
from stretto_runtime.owner.context import Context
from stretto_runtime.owner.dead_letters import DeadLetters
from stretto_runtime.owner.handling import Handling, Ports, Takeover
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.reports import Reports
from stretto_runtime.owner.state.recovery import Loaded, recovered
from stretto_runtime.owner.state.snapshots import Cursor, Snapshots
from stretto_runtime.owner.tenure.terms import Term, fence_subject, term_at, terms
from stretto_runtime.process.faults import Contradiction
from stretto_runtime.service import Service

log = structlog.get_logger("stretto.succession")


async def finish(context: Context, number: int, loaded: Loaded, snapshots: Snapshots, fence: Fence) -> Loaded:
    """Decide the inputs that earlier owners may have decided, each in its term; returns what to continue from.

    It does nothing if all of them decided as we do.

    Raises:
        Refusal: this code would contradict what was published; nothing was stored.
    """
    service, cursor = context.service, loaded.cursor
    own = Term.of(service)
    # after a clean shutdown our term begins before our fence: inputs in between may be replayed here, too
    fences = await read(context.bus, STREAM, [fence.subject], until=fence.seq)
    known = [
        term for term in terms(fences) if term.fence < fence.seq or (term.fence == fence.seq and term.seq < fence.seq)
    ]
    if not known or (known[-1].fence == cursor.fence and known[-1].decides_as(own)):
        return loaded  # no predecessor, or one that wrote the snapshot and decides as we do
    pending = [term_at(known, cursor.seq + 1), *(term for term in known if term.seq > cursor.seq)]
    if all(term.decides_as(own) for term in pending):
        return loaded
    writer = _Comparing(context.bus, fence, await _unfinished(context.bus, service.name, number, loaded, fence), number)
    documents = dict(loaded.documents)
    coming = deque(pending[1:])
    takeover = Takeover(number, fence.seq, 1)
    reports = Reports(context.bus, context.routes.telemetry(number), cursor.reports)
    handling = await _handling(context, takeover, pending[0], replace(loaded, documents=documents), writer, reports)
    # a server that has our fence has everything before it
    filters = [*context.routes.filters(number), fence.subject]
    async for stored in scan(context.bus, STREAM, filters, cursor.seq + 1, fence.seq):
        if stored.seq >= fence.seq:
            break
        if stored.subject == fence.subject:
            continue
        while coming and coming[0].seq < stored.seq:
            documents |= handling.machines.documents(sorted(handling.machines.slots))
            now = replace(loaded, documents=documents)
            handling = await _handling(context, takeover, coming.popleft(), now, writer, reports)
        await handling.handle(stored)
    await reports.close()
    writer.finish()
    await writer.drain()
    changed = handling.machines.documents(sorted(handling.machines.slots))
    done = Cursor(fence.seq, fence.seq - 1, service.version, reports=reports.position)
    too_large = await snapshots.save(changed, done)
    log.info("finished what another term had begun", partition=number, after=cursor.seq, up_to=fence.seq)
    kept = {key: document for key, document in (documents | changed).items() if key not in too_large}
    return replace(loaded, cursor=done, documents=kept, lost=loaded.lost | too_large, uncertain=frozenset())


async def check_snapshots(bus: Bus, service: Service) -> None:
    """Check, before anything is taken, that this code can continue everything that is saved and sound.

    Damage is logged only; whoever owns the partition sets it aside.

    Raises:
        Refusal: this code cannot continue a sound document.
    """
    # one partition after the other: all documents at once would take several times the memory of the machines
    for number in range(PARTITIONS):
        place = f"{STATE_PREFIX}snap.{service.name}.{number}.>"
        found = recovered(await read(bus, STATE, [place], deliver_policy="last_per_subject"))
        for damage in found.damages:
            log.error("a saved state is damaged", subject=damage.subject, seq=damage.seq, reason=damage.reason)
        documents = {key: document for (_, key), document in found.documents.items()}
        await asyncio.to_thread(Machines(service).check, documents)


async def _handling(
    context: Context, takeover: Takeover, term: Term, loaded: Loaded, writer: Writer, reports: Reports
) -> Handling:
    then = term.service(context.service) or context.service
    machines = Machines(then)
    machines.lost = loaded.lost
    await machines.load_in_thread(loaded.documents)
    ports = Ports(writer, DeadLetters(context, writer), reports, context.bus.send)
    return Handling(replace(context, service=then), takeover, machines, ports)


async def published_ids(bus: Bus, service: str, number: int, start: int, end: int) -> frozenset[str]:
    """The ids that predecessors have published since the snapshot, which must not be published again."""
    return frozenset([stored.headers["ce-id"] async for stored in _outputs(bus, service, number, start, end, True)])


async def _unfinished(bus: Bus, service: str, number: int, loaded: Loaded, fence: Fence) -> dict[str, Stored]:
    """Published outputs of inputs that no document contains."""
    found: dict[str, Stored] = {}
    async for stored in _outputs(bus, service, number, loaded.cursor.out_seq + 1, fence.seq, False):
        made = input_seq(stored.headers["ce-id"])
        if made is None:
            continue  # published by hand
        source, seq = made
        # outputs of the cluster's machine are stored in the partitions of the jobs that they are about
        owner = CLUSTER_PARTITION if of_cluster(source) else number_of(stored.subject)
        key = CLUSTER if of_cluster(source) else stored.subject.rpartition(".")[2]
        document = loaded.documents.get(key)
        if key in loaded.lost:
            continue  # nothing is decided for it any more
        if owner == number and seq > max(loaded.cursor.seq, document.seq if document else 0):
            found[stored.headers["ce-id"]] = stored
    return found


def number_of(subject: str) -> int:
    """The partition in front of a stored subject; -1 if there is none."""
    token = subject.partition(".")[0]
    return int(token) if token.isascii() and token.isdecimal() else -1


async def _outputs(
    bus: Bus, service: str, number: int, start: int, end: int, headers_only: bool
) -> AsyncGenerator[Stored]:
    token = "*" if number == CLUSTER_PARTITION else str(number)
    # a server that has our fence has everything before it
    subjects = [f"{token}.evt.v1.{service}.*.*", fence_subject(service, number)]
    async for stored in scan(bus, STREAM, subjects, start, end, headers_only=headers_only):
        if stored.seq > end:
            break
        if stored.headers.get("ce-id", "").startswith(f"{service}:"):
            yield stored


class _Comparing(Writer):
    """Publishes the missing outputs, once every published one has been made again, byte by byte."""

    def __init__(self, bus: Bus, fence: Fence, published: dict[str, Stored], number: int) -> None:
        super().__init__(bus, fence, asyncio.Event())
        self._left = published
        self._number = number
        self._dead: list[tuple[str, bytes, dict[str, str]]] = []

    def send(self, output_id: str, subject: str, data: bytes, lines: str = "") -> None:
        stored = self._left.pop(output_id, None)
        if stored is None:
            self._check_all_made()  # outputs are stored in order: missing ones come after those that are there
            super().send(output_id, subject, data, lines)
        elif (stored.subject.partition(".")[2], stored.data) != (subject, data):
            self._refuse(stored, "otherwise")

    def send_plain(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Hold dead letters back until nothing can be refused: a refused partition is tried again and again."""
        if self._left:
            self._dead.append((subject, data, headers))
        else:
            super().send_plain(subject, data, headers)

    def finish(self) -> None:
        """Send the dead letters. Raises Refusal if a published output was not made again."""
        self._check_all_made()
        for subject, data, headers in self._dead:
            super().send_plain(subject, data, headers)

    def _check_all_made(self) -> None:
        for stored in self._left.values():
            self._refuse(stored, "not at all")

    def _refuse(self, stored: Stored, how: str) -> None:
        made = input_seq(stored.headers["ce-id"])
        raise Contradiction(
            f"partition {self._number}: {stored.headers['ce-id']} ({stored.subject}) was published, is in no "
            f"snapshot, and this version decides it {how}; start the version of then once more and stop it by SIGTERM, "
            "so that nothing is left unfinished",
            CLUSTER if made is not None and of_cluster(made[0]) else stored.subject.rpartition(".")[2],
        )

"""Defects that a simulation has to find: one function each, changed in place as long as a history runs.

``python planted_defects.py NUMBER SEEDS`` plants one, and prints the first seed below SEEDS that finds it, with what it
broke.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from stretto_bus.reading import lost_end, ordered_consumer
from stretto_bus.writer import Writer
from stretto_checkpoints.taker import Taker
from stretto_core.arbiter.context import StepContext
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.recomputing import EndedSince
from stretto_core.dispatcher.state import LedgerState
from stretto_core.oom.machine import OomMachine
from stretto_gateway.http import event_stream
from stretto_gateway.streams.bus import StreamBus
from stretto_gateway.streams.continuity import Continuity
from stretto_installation.backup import entries
from stretto_runtime.owner.dead_letters import DeadLetters
from stretto_runtime.owner.session import Session
from stretto_runtime.owner.state.state_codec import StateCodec
from stretto_runtime.owner.tenure import succession
from stretto_runtime.owner.tenure.ownership import Ownership
from stretto_testing.history import WHOLE_EVERY, History
from stretto_wire import codec


@dataclass(frozen=True)
class Plant:
    """A defect: ``old`` stands once in the source of ``function``, and ``new`` in its place."""

    name: str
    function: Callable[..., Any]
    old: str
    new: str
    is_of_all: bool = False
    """Only a history with all services can find it."""

    @contextlib.contextmanager
    def planted(self) -> Generator[None]:
        """Change the function in place, for whoever has it already."""
        source = inspect.getsource(self.function)
        assert source.count(self.old) == 1, f"{self.name}: plant it anew"
        lines = textwrap.dedent(source.replace(self.old, self.new)).splitlines()
        text = "\n".join(line for line in lines if not line.startswith("@"))
        names = dict(self.function.__globals__)
        flags = __future__.annotations.compiler_flag
        exec(compile(text, f"planted: {self.name}", "exec", flags, dont_inherit=True), names)
        changed = names[self.function.__name__]
        before, self.function.__code__ = self.function.__code__, changed.__code__
        try:
            yield
        finally:
            self.function.__code__ = before


PLANTS = [
    Plant(
        "outputs leave without the fence",
        Writer.send,
        "self._put(subject, data, lines + self._behind)",
        "self._put(subject, data, lines)",
    ),
    Plant(
        "journal frames leave without the fence",
        Writer.store,
        "self._bus.put(subject, data, lines + self._behind, receiver)",
        "self._bus.put(subject, data, lines, receiver)",
    ),
    Plant(
        "a heartbeat extends a lost lease",
        ShardLedger._heartbeat,
        "        if lease is not None:\n            self._check_offset",
        "        answer = answer.replace('stale', 'ok')\n        if lease is not None:\n            self._check_offset",
    ),
    Plant(
        "a snapshot is saved before its outputs are stored, and names them",
        Session._snapshot,
        "out_seq = self._writer.last_seq if self.live else self._scan_from",
        "out_seq = self._writer.last_seq + 1000",
    ),
    Plant(
        "a reader believes a server that lags",
        ordered_consumer.scan,
        "while left > 0 or reached < until",
        "while left > 0",
    ),
    Plant(
        "a message is set aside without a look at the letters of predecessors",
        DeadLetters._write,
        "letter.id in await self._ids(subject)",
        "False",
    ),
    Plant(
        "a snapshot names one input more than it contains",
        Session._snapshot,
        "Cursor(self._seq, out_seq",
        "Cursor(self._seq + 1, out_seq",
    ),
    Plant(
        "a successor does not look for the outputs of its predecessor",
        succession.published_ids,
        'frozenset([stored.headers["ce-id"] async for stored in _outputs(bus, service, number, start, end, True)])',
        "frozenset()",
    ),
    Plant(
        "a silent worker keeps its lease for ever",
        ShardLedger._tick,
        "st.lost(now, self.settings)",
        "()",
    ),
    Plant(
        "what a dead worker held is not put back",
        LedgerState.take_back,
        "book.requeued.append(lease)",
        "pass",
    ),
    Plant(
        "a replica knows more than a server that lost power, and believes itself",
        Ownership._refresh_surely,
        "self._begin_again()",
        "self.refresh()",
    ),
    Plant(
        "an owner takes what stands at a place of the log for what it has handled there",
        lost_end._is_there,
        "abs(found.time_s - place.time_s) <= TIME_EXACT_S",
        "True",
    ),
    Plant(
        "a gateway goes on behind what its server has lost",
        Continuity.lost,
        "if kept is not None:",
        "if False:",
    ),
    Plant(
        "a restored bucket has the leases of processes that are gone",
        entries.restored,
        "if kind in LEASES or is_removed(stored):",
        "if is_removed(stored):",
    ),
    Plant(
        "an open event stream does not say that the log has lost its end",
        event_stream.stream,
        "if kept is not None:",
        "if False:",
    ),
    Plant(
        "a consumer that died with a server of a cluster is not made anew",
        ordered_consumer.OrderedConsumer._watch,
        "now - self._active_s > 3 * self._heartbeat_s and self._bus.connected",
        "False",
    ),
    Plant(
        "gateways store one submission twice",
        StreamBus.publish,
        "if last is not None:",
        "if False:",
        is_of_all=True,
    ),
    Plant(
        "the next version continues a state as it is",
        StateCodec.build,
        "to_json(migrate(document.whole, document.version))",
        "to_json(document.whole)",
    ),
    Plant(
        "the next version saves states in a shape that the one before cannot read",
        StateCodec.content,
        'if getattr(machine, "storage_version", version) != version:',
        "if False:",
    ),
    Plant(
        "a reader refuses fields that a later version added",
        codec.decode,
        'extra="ignore"',
        'extra="forbid"',
    ),
    Plant(
        "the arbiter gives away what other jobs hold",
        StepContext.free,
        "self.capacity - self.register.held",
        "self.capacity",
        is_of_all=True,
    ),
    Plant(
        "a snapshot forgets which reports it contains",
        Session._snapshot,
        "reports, time_us = self._reports.position,",
        "reports, time_us = 0,",
        is_of_all=True,
    ),
    Plant(
        "room is free before the pods that have it are gone",
        ArbiterMachine._ended,
        "if job.plan is None or",
        "if isinstance(event, JobCompleted) or job.plan is None or",
        is_of_all=True,
    ),
    Plant(
        "the room of a finished job is free before its last pods are gone",
        ArbiterMachine._ended,
        "(job.finished and not job.pods)",
        "job.finished",
        is_of_all=True,
    ),
    Plant(
        "checkpoints of after a backup are not looked for",
        Taker._chosen,
        "if later.job == self.job and url not in gone:",
        "if False:",
        is_of_all=True,
    ),
    Plant(
        "a server that was ended for its memory starts with as much",
        OomMachine._server_exited,
        "int(AFTER_KILL * limit)",
        "int(limit)",
        is_of_all=True,
    ),
    Plant(
        "restored columns get nothing again of what they lack",
        ShardLedger._recompute,
        "st.recompute(st.book) if event.columns else (0, 0)",
        "(0, 0)",
        is_of_all=True,
    ),
    Plant(
        "records of shards are deleted before a later checkpoint has them",
        EndedSince.add,
        "if not self.needed:",
        "if True:",
        is_of_all=True,
    ),
]


def found_by(plant: Plant, seeds: range) -> tuple[int, str] | None:
    """Return the first seed that finds a defect, and what it broke; None: none does."""
    with plant.planted():
        for seed in seeds:
            if plant.is_of_all != (seed % WHOLE_EVERY == 0):
                continue
            if broken := History(seed).run().broken:
                return seed, broken[0]
    return None


if __name__ == "__main__":
    sys.stdout.write(f"{found_by(PLANTS[int(sys.argv[1])], range(int(sys.argv[2])))}\n")

"""Promises as checks: some whenever a message is stored, the others at the end of a history.

Each names the row of ``PROMISES.md`` that it stands for.
"""

from __future__ import annotations

from collections.abc import Collection

from stretto_bus.received import header_lines
from stretto_runtime import Service
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.registry import STREAM

from stretto_testing.installation import SimulatedInstallation
from stretto_testing.jetstream.streams import Kept, KeptStream


class Watch:
    """Looks at every stored message; ``services`` are those that run. ``broken`` has what must not be."""

    def __init__(self, services: Collection[str]) -> None:
        self._services = services
        self.broken: list[str] = []
        self._fences: dict[str, tuple[str, int]] = {}
        """Service and partition -> who wrote the last fence, and its sequence"""
        self._outputs: dict[str, int] = {}
        self._completed: dict[str, int] = {}

    def stored(self, stream: KeptStream, kept: Kept, writer: str) -> None:
        """Check a message of the stream of facts."""
        if stream.name != STREAM:
            return
        words = kept.subject.split(".")
        if words[0] == "fence":
            self._fences[f"{words[1]}.{words[2]}"] = writer, kept.seq
        elif words[0] == "journal":
            self._owned(f"{words[1]}.{words[2]}", kept, writer)
        elif words[1] == "evt":
            self._event(words, kept, writer)

    def _event(self, words: list[str], kept: Kept, writer: str) -> None:
        partition, service, name, job = words[0], words[3], words[4], words[5]
        if service in self._services:
            self._owned(f"{service}.{partition}", kept, writer)
        output = header_lines(kept.block.decode().partition("\r\n")[2]).get("ce-id", "")
        if output in self._outputs:
            self.broken.append(f"the output {output} is stored twice: {self._outputs[output]} and {kept.seq}")
        self._outputs[output] = kept.seq
        if name == "job-completed":
            if job in self._completed:
                self.broken.append(f"{job} is completed twice: {self._completed[job]} and {kept.seq}")
            self._completed[job] = kept.seq

    def _owned(self, partition: str, kept: Kept, writer: str) -> None:
        """Row "a former owner writes after its successor has taken over"."""
        owner, fence = self._fences.get(partition, ("nobody", 0))
        if owner != writer:
            self.broken.append(f"{kept.subject} {kept.seq} is of {writer}; since {fence} {owner} owns {partition}")


def books(installation: SimulatedInstallation) -> list[str]:
    """Return what is wrong with the books of jobs that are over."""
    found: list[str] = []
    for job in installation.jobs:
        missing, repeated = job.missing_and_repeated()
        if missing or repeated:
            found.append(f"{job.name}: {missing} counts of samples are missing, {repeated} are repeated")
        found += job.wrong
    return found


async def decided_again(installation: SimulatedInstallation, service: Service) -> list[str]:
    """Return the decisions that the stream does not give again, byte for byte."""
    found: list[str] = []
    for job in installation.jobs:
        done = await replay(BusStreams(installation.client.bus), service, job.name)
        found += [
            f"{job.name}: the decision {decision.id} of input {decision.seq}: {decision.verdict}"
            for decision in done.decisions
            if decision.verdict not in ("same", "not replayed")
        ]
        found += [f"{job.name}: {text}" for text in done.missing]
    return found

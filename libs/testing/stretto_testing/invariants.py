"""Promises as checks: some whenever a message is stored, the others at the end of a history."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto_bus.received import header_lines
from stretto_checkpoints import manifest
from stretto_checkpoints.manifest import ManifestDamaged, ManifestError
from stretto_messages.actuator import JobFailed, JobFinished
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed
from stretto_messages.dispatcher import ShardRequeued
from stretto_messages.values import CheckpointRef, Plan
from stretto_runtime import Service
from stretto_runtime.inputs import CLUSTER_PARTITION, input_seq, of_cluster
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams
from stretto_wire.codec import decode
from stretto_wire.contract.registry import DEAD_LETTERS, STREAM

from stretto_testing.checks import Check
from stretto_testing.installation import POISON, POISONED, SimulatedInstallation, until
from stretto_testing.jetstream.streams import Kept, KeptStream
from stretto_testing.nodes import Wording
from stretto_testing.processes.gateways import shown, told_by
from stretto_testing.processes.training import COLUMNS
from stretto_testing.processes.versions import next_version

MOVED = "moved during the exports"
"""Words of the one failure of a checkpoint that needs no fault."""
EXITED = "has exited"
"""Words of the reason for which a sound report is set aside."""
SHOWN_WITHIN_S = 30.0
"""Time after the last fault within which every gateway shows what the facts tell."""
CHECKPOINTS_LEFT_MOST = 3
"""Complete checkpoints of a finished job that stay: two, and the final one."""


class Watch:
    """Looks at every stored message; ``services`` are those that run. ``broken`` has what must not be."""

    def __init__(self, services: Sequence[str], cores: float) -> None:
        self.services, self._cores = services, cores
        self.finished: dict[str, JobFinished] = {}
        self.events: list[int] = []
        """Sequences of all events"""
        self.expired: list[str] = []
        """Leases that expired: there are none where nothing happens to workers"""
        self._plans: dict[str, Plan] = {}
        self._data_cores: dict[str, float] = {}
        """Job -> cores of all its data workers"""
        self._cycle: tuple[str, int] | None = None
        """The input of the arbiter's last output: what it decides by one input counts together"""
        self.broken: list[str] = []
        self._fences: dict[str, tuple[str, int]] = {}
        """Service and partition -> who wrote the last fence, and its sequence"""
        self._outputs: dict[str, int] = {}
        self._letters: dict[str, int] = {}
        """Id of a dead letter -> its sequence"""
        self._poison: list[int] = []
        """Sequences of stored messages that nobody can read"""
        self._late: set[str] = set()
        """Letters about reports of pods whose end was told before: the service is right to refuse them"""
        self._completed: dict[str, int] = {}
        self.failed: list[str] = []
        """Checkpoints that failed: none does where services die and nothing else happens"""
        self._flushed: dict[str, int] = {}

    def stored(self, stream: KeptStream, kept: Kept, writer: str) -> None:
        """Check a message of the stream of facts, or a dead letter."""
        if stream.name == DEAD_LETTERS:
            headers = header_lines(kept.block.decode().partition("\r\n")[2])
            letter = headers["Nats-Msg-Id"]
            if EXITED in headers["error"]:
                self._late.add(letter)
            if letter in self._letters:
                self.broken.append(f"{Check.LETTERS}: {letter} is stored twice: {self._letters[letter]} and {kept.seq}")
            self._letters[letter] = kept.seq
        if stream.name != STREAM:
            return
        words = kept.subject.split(".")
        if words[0] == "fence":
            self._fences[f"{words[1]}.{words[2]}"] = writer, kept.seq
        elif words[0] == "journal":
            self._owned(f"{words[1]}.{words[2]}", kept, writer)
        elif words[1] == "evt":
            self._event(words, kept, writer)

    def now(self) -> Watch:
        """Return a copy of all that was seen."""
        return copy.deepcopy(self)

    def go_back(self, then: Watch, last_letter: int) -> None:
        """Forget what was seen since a moment, and the dead letters behind ``last_letter``; what was wrong stays."""
        broken = self.broken
        self.__dict__.update(then.__dict__)
        self.broken = broken
        self._letters = {letter: seq for letter, seq in self._letters.items() if seq <= last_letter}

    def letters(self) -> list[str]:
        """Return what is wrong with dead letters: a service has one of what nobody can read, and of nothing else."""
        wanted = {f"dlq:dispatcher:{seq}" for seq in self._poison}
        known = {letter for letter in self._letters if int(letter.split(":")[2].partition(".")[0]) in self._poison}
        sound = self._letters.keys() - known - self._late
        return [
            *(f"{Check.LETTERS}: {letter} is missing" for letter in sorted(wanted - known)),
            *(f"{Check.LETTERS}: {letter} is of a sound message" for letter in sorted(sound)),
        ]

    def _event(self, words: list[str], kept: Kept, writer: str) -> None:
        partition, service, name, job = words[0], words[3], words[4], words[5]
        self.events.append(kept.seq)
        output = header_lines(kept.block.decode().partition("\r\n")[2]).get("ce-id", "")
        if output.startswith(POISON):  # whoever stored it may have had no answer
            self._poison.append(kept.seq)
        made = input_seq(output)
        if service in self.services:
            owner = CLUSTER_PARTITION if made is not None and of_cluster(made[0]) else partition
            self._owned(f"{service}.{owner}", kept, writer)
        if output in self._outputs and made is not None:
            self.broken.append(
                f"{Check.ONCE}: the output {output} is stored twice: {self._outputs[output]} and {kept.seq}"
            )
        self._outputs[output] = kept.seq
        if service == "arbiter" and made != self._cycle:
            self.fit(kept.seq)
            self._cycle = made
        self._plan(name, job, kept)
        if name == "shard-requeued" and decode(ShardRequeued, kept.data).reason == "lease-expired":
            self.expired.append(f"{Check.EXPIRY}: {job}: a lease expired, at {kept.seq}")
        if name == "checkpoint-flushed":
            self._checkpoint(decode(CheckpointFlushed, kept.data).checkpoint, kept.seq)
        if name == "checkpoint-failed" and MOVED not in (reason := decode(CheckpointFailed, kept.data).reason):
            self.failed.append(f"{Check.CHECKPOINT}: one of {job} failed, at {kept.seq}: {reason}")
        if name in ("checkpoint-restored", "recomputation-decided"):
            self._completed.pop(job, None)  # a completed job whose parameters are lost is opened again
        if name == "job-failed":
            self.broken.append(f"{Check.LIVENESS}: {job} failed, at {kept.seq}: {decode(JobFailed, kept.data).reason}")
        if name == "job-completed":
            if job in self._completed:
                self.broken.append(f"{Check.ONCE}: {job} is completed twice: {self._completed[job]} and {kept.seq}")
            self._completed[job] = kept.seq

    def _plan(self, name: str, job: str, kept: Kept) -> None:
        """Note the last plans and data workers of all jobs that are not finished."""
        if name == "plan-decided":
            decided = decode(PlanDecided, kept.data)
            self._plans[job] = decided.plan
        elif name == "data-workers-decided":
            told = decode(DataWorkersDecided, kept.data)
            self._data_cores[job] = told.count * told.cpu_cores
        elif name == "job-finished":
            self._plans.pop(job, None)
            self._data_cores.pop(job, None)
            self.finished[job] = decode(JobFinished, kept.data)

    def fit(self, seq: int) -> None:
        """Check that all that was decided before ``seq`` fits together."""
        each = (plan.workers * plan.worker_cpu_cores + plan.ps * plan.ps_cpu_cores for plan in self._plans.values())
        cores = sum(each) + sum(self._data_cores.values())
        if cores > self._cores + 1e-6:
            self.broken.append(f"{Check.PLANS}: the plans have {cores:g} cores, of {self._cores:g}, before {seq}")

    def _checkpoint(self, checkpoint: CheckpointRef, seq: int) -> None:
        """Check that a complete checkpoint is told once, and has each column in one image."""
        if checkpoint.id in self._flushed:
            self.broken.append(
                f"{Check.CHECKPOINT}: {checkpoint.id} is complete twice: {self._flushed[checkpoint.id]} and {seq}"
            )
        self._flushed[checkpoint.id] = seq
        with contextlib.suppress(ManifestError, ManifestDamaged):  # it has expired meanwhile
            parts = manifest.read(checkpoint.url).parts
            if sorted(column for part in parts for column in part["columns"]) != [*range(COLUMNS)]:
                self.broken.append(f"{Check.CHECKPOINT}: {checkpoint.id} lacks columns, or has some twice")

    def _owned(self, partition: str, kept: Kept, writer: str) -> None:
        """Check that the writer of the last fence of a partition wrote this, too."""
        owner, fence = self._fences.get(partition, ("nobody", 0))
        if owner != writer:
            self.broken.append(
                f"{Check.FENCE}: {kept.subject} {kept.seq} is of {writer}; since {fence} {owner} owns {partition}"
            )


ANSWERED_WITHIN_S = 10.0
"""Longest time of an answer while there is no fault: two leases of a dead owner, and three pings of a dead line."""


def books(installation: SimulatedInstallation) -> list[str]:
    """Return what is wrong with the books of jobs that are over."""
    found: list[str] = []
    for job in installation.jobs.values():
        missing, repeated = job.missing_and_repeated()
        if missing or repeated:
            found.append(f"{Check.BOOKS}: {job.name}: {missing} counts of samples are missing, {repeated} are repeated")
        if job.longest_wait_s > ANSWERED_WITHIN_S and not installation.simulation.server.lag_share:
            found.append(f"{Check.ANSWERED}: {job.name}: a request waited {job.longest_wait_s:.1f} s without a fault")
        found += job.wrong
    return found + installation.place.broken


def files(installation: SimulatedInstallation, folder: Path) -> list[str]:
    """Return the jobs that leave more checkpoints behind than they keep."""
    store = folder / "checkpoints"
    found = {name: sorted(path.name for path in (store / name).glob("*")) for name in installation.jobs}
    return [f"{Check.FILES}: {name} leaves {left}" for name, left in found.items() if len(left) > CHECKPOINTS_LEFT_MOST]


async def views(installation: SimulatedInstallation, promises_accepted: bool) -> list[str]:
    """Return what gateways show otherwise than the facts tell it, and accepted submissions that are not stored once."""
    stream = installation.simulation.server.api.streams[STREAM]
    facts: dict[str, Any] = {}

    reader = installation.reader

    def agree() -> bool:
        nonlocal facts
        facts = shown(told_by(stream))
        is_told = reader is None or reader.known == _told(stream)
        return is_told and all(gateway.views() == facts for _, gateway in installation.gateways)

    found: list[str] = []
    if not await until(agree, SHOWN_WITHIN_S):
        for replica, gateway in installation.gateways:
            has = gateway.views()
            wrong = sorted(name for name in {*facts, *has} if facts.get(name) != has.get(name))
            found += [
                f"{Check.VIEW}: {replica.name} shows another {name}: {_difference(facts, has, name)}" for name in wrong
            ]
        if reader is not None and reader.known != (events := _told(stream)):
            wrong = sorted(seq for seq in {*events, *reader.known} if events.get(seq) != reader.known.get(seq))
            found.append(
                f"{Check.TOLD}: the reader knows {[(seq, reader.known.get(seq)) for seq in wrong[:5]]} instead of "
                f"{[(seq, events.get(seq)) for seq in wrong[:5]]}"
            )
    found += [f"{Check.TOLD}: the reader gave up: {error}" for error in (reader.given_up if reader is not None else ())]
    for name in sorted(installation.accepted if promises_accepted else ()):
        stored = [kept.seq for kept in stream if kept.subject.endswith(f".evt.v1.gateway.job-submitted.{name}")]
        if len(stored) != 1:
            found.append(f"{Check.ACCEPTED}: {name} was accepted, and is stored at {stored}")
    return found


def _told(stream: KeptStream) -> dict[int, tuple[str, str]]:
    """Return name and job of each event of a stream that can be read."""
    words = {kept.seq: kept.subject.split(".") for kept in stream if ".evt." in kept.subject and kept.data != POISONED}
    return {seq: (parts[4], parts[5]) for seq, parts in words.items()}


def _difference(facts: Mapping[str, Any], has: Mapping[str, Any], name: str) -> str:
    """Return the first field of a view that is not as it has to be."""
    if name not in facts or name not in has:
        return "only the facts tell of it" if name in facts else "no fact tells of it"
    field = next(field for field, value in facts[name].items() if has[name][field] != value)
    return f"{field} is {has[name][field]!r}, not {facts[name][field]!r}"[:1000]


async def decided_again(installation: SimulatedInstallation, service: Service) -> list[str]:
    """Return the decisions that the stream does not give again, byte for byte, under any version that ran."""
    found = await _decided_otherwise(
        installation, service, Wording.OLDER if installation.is_worded else Wording.PRESENT
    )
    if found and installation.is_upgraded:
        wording = Wording.NEWER if installation.is_worded else Wording.PRESENT
        others = await _decided_otherwise(installation, next_version(service), wording)
        found = [text for text in found if text in others]
    return found


async def _decided_otherwise(installation: SimulatedInstallation, service: Service, wording: Wording) -> list[str]:
    """Return the decisions that one version takes otherwise."""
    found: list[str] = []
    root = installation.simulation.loop.root
    before, root.wording = root.wording, wording
    for job in installation.jobs.values():
        done = await replay(BusStreams(installation.client.bus), service, job.name)
        found += [
            f"{Check.REPLAY}: {job.name}: the decision {decision.id} of input {decision.seq}: {decision.verdict}"
            for decision in done.decisions
            if decision.verdict not in ("same", "not replayed")
        ]
        found += [f"{Check.REPLAY}: {job.name}: {text}" for text in done.missing]
    root.wording = before
    return found

"""Decide a past job again, from the stream alone, and compare with the decisions of then.

The machines, translations and encodings are those that serve (:class:`Handling`). They get the stored inputs in their
order under the stored times; outputs go into a list instead of the stream. An output is reproduced when its id, its
subject and every byte of its body are the same. Everything here only reads, from the bus or from whoever hands its
streams on (:class:`Streams`).

The code is the installed one; the settings are those that the fence of each term recorded. So any difference is a
decision that this code makes otherwise. Telemetry and journals live shorter than events; the result names what the
stream no longer holds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import from_json
from stretto_bus.reading.ordered_consumer import Stored
from stretto_wire.contract.excerpts import Excerpt, Stream, StreamFacts
from stretto_wire.contract.registry import TELEMETRY_KEPT_PER_POD, channel_at, channel_of, partition_of
from stretto_wire.surroundings import wall_s

from stretto_runtime.inputs import CLUSTER, REPORTS, Arrival, Routes, input_seq, of_cluster
from stretto_runtime.owner.context import Tools
from stretto_runtime.owner.handling import Handling, Ports, Takeover
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.reports import StoredReports
from stretto_runtime.owner.state.recovery import cursor_of, document_of
from stretto_runtime.owner.state.snapshots import Document
from stretto_runtime.owner.tenure.terms import Term, fence_subject, term_at, terms
from stretto_runtime.process.faults import RuntimeFault
from stretto_runtime.process.telemetry import Metrics
from stretto_runtime.service import Service
from stretto_runtime.spans.tracing import Tracing
from stretto_runtime.streams import Streams, read

FORGET_EVERY = 500
"""Inputs after which the machines' own documents replace their lists of events, as a snapshot does when serving."""

Verdict = Literal["same", "differs", "not decided now", "not decided then", "not replayed"]
"""``not replayed``: its input precedes the first one that could be replayed."""


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """One output, then and now. ``then`` and ``now`` are bodies, None where there is none; ``version`` the code's."""

    id: str
    seq: int
    """Sequence of the input."""
    time_s: float
    name: str
    verdict: Verdict
    version: int | None
    then: bytes | None
    now: bytes | None

    def differences(self) -> list[tuple[str, Any, Any]]:
        """(field, then, now) of every leaf that differs; None where it is missing."""
        old, new = (dict(_leaves("", _document(body))) if body else {} for body in (self.then, self.now))
        return [(name, old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


@dataclass(slots=True)
class Replayed:
    """The decisions of one service about one job, in the order of the inputs."""

    service: str
    version: int
    began_seq: int = 0
    inputs: int = 0
    missing: list[str] = field(default_factory=list[str])
    """Parts that the stream no longer holds, in words."""
    decisions: list[ReplayedDecision] = field(default_factory=list[ReplayedDecision])

    def count(self, *verdicts: Verdict) -> int:
        return sum(decision.verdict in verdicts for decision in self.decisions)

    @property
    def reproduced(self) -> bool:
        """True if every decision that could be made again is the same."""
        return all(decision.verdict in ("same", "not replayed") for decision in self.decisions)


async def replay(streams: Streams, service: Service, job: str, overrides: Mapping[str, Any] | None = None) -> Replayed:
    """Repeat the decisions of ``service`` about ``job``, up to the last message stored now.

    ``service`` brings the code. ``overrides`` replace recorded settings: the result is then what would have been
    decided under those.

    Raises:
        Fault: the streams cannot be read.
        RuntimeFault: nothing of the job is stored, or a setting is refused.
    """
    facts = await streams.facts(Stream.FACTS)
    begins = ("gateway.job-submitted", "decider.object-adopted")
    submitted = await read(streams, Excerpt(subject=tuple(f"*.evt.v1.{name}.{job}" for name in begins)))
    if not submitted:
        why = await streams.unreadable() or ["it never was, or it is older than events are kept"]
        raise RuntimeFault(f"the stream holds no submission of {job!r}: {'; '.join(why)}")
    done = Replayed(service.name, service.version)
    if "job" in service.state_types:
        await _Again(streams, facts, service, job, job, overrides or {}).run(done, submitted[0].time_s)
    if "cluster" in service.state_types:
        await _Again(streams, facts, service, job, CLUSTER, overrides or {}).run(done, facts.created_at_s)
    done.missing += await streams.unreadable()
    done.decisions.sort(key=lambda decision: (decision.seq, decision.id))
    return done


class _KeyRoutes(Routes):
    """The routes of one key only."""

    def __init__(self, service: Service, key: str) -> None:
        super().__init__(service.name, service.inputs, service.observations)
        self._key = key

    def filters(self, partition: int) -> list[str]:
        subjects = [f"journal.{self._service}.{partition}"]
        for pattern, scopes in self._patterns.items():
            if self._key == CLUSTER and "cluster" in scopes:
                subjects.append(f"*.{pattern}")
            elif self._key != CLUSTER and "job" in scopes:
                subjects.append(f"{partition}.{pattern.removesuffix('*')}{self._key}")
        return subjects

    def telemetry(self, partition: int) -> list[str]:
        if self._key == CLUSTER:
            return []
        return [f"{partition}.{pattern.removesuffix('*')}{self._key}" for pattern in self._reported]

    def arrivals(self, stored: Stored, partition: int) -> list[Arrival]:
        return [a for a in super().arrivals(stored, partition) if a.kind in ("tick", REPORTS) or a.key == self._key]


class _Recorder:
    """Keeps the outputs of a replay instead of publishing them; dead letters and answers are ignored."""

    full = False

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, bytes]] = {}
        """Id of an output -> (subject, body)."""

    def send(self, output_id: str, subject: str, data: bytes, lines: str = "") -> None:
        self.made[output_id] = (subject, data)

    async def room(self) -> None:
        """Return at once."""

    async def add(self, arrival: Arrival, reason: str, text: str, more: dict[str, str], live: bool) -> None:
        """Ignore the letter: a replay keeps no dead letters."""

    def go_live(self) -> None:
        """Return at once: a replay has no predecessor."""

    async def answer(self, reply: str, body: bytes, headers: dict[str, str] | None) -> None:
        """Ignore the answer: nobody waits for it in a replay."""


class _Untraced(Tracing):
    def __init__(self) -> None:
        """Have no provider: a replay is no part of the job's trace."""

    def afford(self) -> bool:
        return False


class _Again:
    """One key of one service, from the first input that can be replayed to the last one of ``facts``."""

    def __init__(
        self, streams: Streams, facts: StreamFacts, service: Service, job: str, key: str, overrides: Mapping[str, Any]
    ) -> None:
        self._streams, self._service, self._job, self._key = streams, service, job, key
        self._end, self._kept_s = facts.last_seq, facts.kept_s
        self._overrides = overrides
        self._number = partition_of(key)
        self._routes = _KeyRoutes(service, key)
        self._metrics = Metrics(service.name)
        self._recorder = _Recorder()
        self._reports = StoredReports(streams, self._routes.telemetry(self._number))
        self._times: dict[int, float] = {}
        """Sequence of an input -> time at which it was stored."""

    async def run(self, done: Replayed, needed_from_s: float) -> None:
        """Add to ``done``. ``needed_from_s``: storing time of the first input that the machine's state depends on."""
        fences = Excerpt(subject=(fence_subject(self._service.name, self._number),))
        known = terms(await read(self._streams, fences))
        lost = self._lost(needed_from_s, await self._reported_from_s())
        document = await self._document() if lost else None
        began = 0
        if lost:
            whose = "the cluster's" if self._key == CLUSTER else "the job's"
            done.missing += [f"{what}, which {whose} decisions depend on" for what in lost]
            began = document.seq if document else self._end
            place = f"only from the snapshot after input {began} on" if document else "not at all, without a snapshot"
            done.missing.append(f"so {whose} decisions can be replayed {place}")
        done.began_seq = max(done.began_seq, began)
        if began < self._end:
            try:
                done.inputs += await self._feed(known, began, document, done)
            finally:
                await self._reports.close()
        await self._compare(known, began, done)

    async def _reported_from_s(self) -> float:
        """Return the time from which on the stream holds every report of the job; it holds so many of each pod."""
        first: dict[str, float] = {}
        counts: Counter[str] = Counter()
        subjects = tuple(self._routes.telemetry(self._number))
        reports = Excerpt(stream=Stream.REPORTS, subject=subjects, headers_only=True)
        for stored in await read(self._streams, reports) if subjects else ():
            first.setdefault(stored.subject, stored.time_s)
            counts[stored.subject] += 1
        return max((first[pod] for pod, count in counts.items() if count >= TELEMETRY_KEPT_PER_POD), default=0.0)

    def _lost(self, needed_from_s: float, reported_from_s: float) -> list[str]:
        """The inputs that may be gone, in words."""
        service, now = self._service, wall_s()
        kept: dict[str, float] = {} if self._kept_s is None else {"events": self._kept_s}
        if reported_from_s:
            kept["the reports of the busiest pod"] = now - reported_from_s
        for entry in service.inputs:
            kept_s = channel_of(entry.message).kept_s
            if kept_s is not None and (entry.scope == "cluster") == (self._key == CLUSTER):
                name = channel_of(entry.message).pattern.rstrip(".*")
                kept[name] = kept_s
        if service.tick_s is not None or service.rpcs or service.has_side_effects:
            kept["requests, observations and ticks"] = service.settings.journal_ttl_s
        return [
            f"{name} before {datetime.fromtimestamp(now - kept_s, UTC):%Y-%m-%d %H:%M:%S} UTC are not kept any longer"
            for name, kept_s in sorted(kept.items())
            if needed_from_s < now - kept_s
        ]

    async def _document(self) -> Document | None:
        return await document_of(self._streams, self._service.name, self._number, self._key)

    async def _feed(self, known: list[Term], began: int, document: Document | None, done: Replayed) -> int:
        """Let the machine handle everything after ``began``; returns how many messages that were."""
        term = term_at(known, began + 1)
        service = self._under(term)
        handling = self._handling(service, {self._key: document} if document else {})
        coming, fed = deque(term for term in known if term.seq > began), 0
        inputs = Excerpt(subject=tuple(self._routes.filters(self._number)), after=began)
        async with aclosing(self._streams.scan(inputs)) as source:
            async for stored in source:
                if stored.seq > self._end:
                    break
                while coming and coming[0].seq < stored.seq:
                    term = coming.popleft()
                    if self._under(term).deciding() != service.deciding():
                        service = self._under(term)
                        handling = self._handling(service, handling.machines.documents(handling.machines.keys))
                fed += 1
                self._times[stored.seq] = stored.time_s
                await handling.handle(stored)
                if fed % FORGET_EVERY == 0:
                    handling.machines.documents(handling.machines.keys)
        return fed

    def _under(self, term: Term) -> Service:
        then = term.service(self._service) or self._service
        if not self._overrides:
            return then
        try:
            return type(then)(type(then.settings)(**{**dict(then.settings), **self._overrides}))
        except ValidationError as error:
            first = error.errors()[0]
            raise RuntimeFault(f"setting {first['loc'][0]} of {then.name} is refused: {first['msg']}") from None

    def _handling(self, service: Service, documents: dict[str, Document]) -> Handling:
        machines = Machines(service)
        machines.load(documents)
        tools = Tools(service, self._routes, self._metrics, _Untraced())
        recorder = self._recorder
        ports = Ports(recorder, recorder, self._reports, recorder.answer)
        return Handling(tools, Takeover(self._number), machines, ports)

    # comparing -------------------------------------------------------------------------------------------------

    async def _compare(self, known: list[Term], began: int, done: Replayed) -> None:
        then = await self._then()
        cursor = await cursor_of(self._streams, self._service.name, self._number)
        made = {name: (subject, body) for name, (subject, body) in self._recorder.made.items() if self._ours(subject)}
        now_s, expired = wall_s(), 0
        for name in {**then, **made}:
            seq = (input_seq(name) or ("", 0))[1]
            old, new = then.get(name), made.get(name)
            stored, subject = (old[0], old[1]) if old else (None, new[0] if new else "")
            if old is None and seq > max(cursor.seq, 0):
                continue  # the service is not that far yet
            channel = channel_at(subject)
            input_s = self._times.get(seq, stored.time_s if stored else 0.0)
            if old is None and channel.kept_s is not None and input_s < now_s - channel.kept_s:
                expired += 1
                continue
            if seq <= began:
                verdict: Verdict = "not replayed"
            elif old is None:
                verdict = "not decided then"
            elif new is None:
                verdict = "not decided now"
            else:
                verdict = "same" if (old[1], old[2]) == new else "differs"
            done.decisions.append(
                ReplayedDecision(
                    name, seq, input_s, channel.name, verdict, term_at(known, seq).version,
                    old[2] if old else None, new[1] if new else None,
                )
            )  # fmt: skip
        if expired:
            done.missing.append(f"{expired} decisions are not kept any longer themselves, so they are not compared")

    def _ours(self, subject: str) -> bool:
        return subject.rpartition(".")[2] == self._job

    async def _then(self) -> dict[str, tuple[Stored, str, bytes]]:
        """Return id -> (as stored, subject, body) of the decisions about the job by this key's machine."""
        mine = f"{self._service.name}:"
        found: dict[str, tuple[Stored, str, bytes]] = {}
        token = partition_of(self._job)
        decided = Excerpt(subject=(f"{token}.evt.v1.{self._service.name}.*.{self._job}",))
        for stored in await read(self._streams, decided):
            name = stored.headers.get("ce-id", "")
            made = input_seq(name)
            if not name.startswith(mine) or made is None:
                continue  # published by hand
            if of_cluster(made[0]) == (self._key == CLUSTER) and made[1] <= self._end:
                found[name] = (stored, stored.subject.partition(".")[2], stored.data)
        return found


def _document(body: bytes) -> Any:
    """The JSON of a decision; its bytes as text if it is none, because others may publish there too."""
    try:
        return from_json(body)
    except ValueError:
        return {"(not JSON)": repr(body)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted path, scalar or empty container)"""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(f"{path}[{index}]", inner)
    else:
        yield path, value

"""A job of a simulation: workers that lease and train shards, and parameter servers that keep nothing but their books.

The books are those of the product (``stretto_parameters.records``); the workers follow the steps of the trainer's. A
sample's gradient is a count: the truth about what each column has.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from stretto_bus import Client
from stretto_bus.faults import CallRefused, CallTimeout
from stretto_messages.dispatcher import (
    NextShard,
    NextShardReply,
    ReleaseShard,
    ShardHeartbeat,
    ShardReport,
)
from stretto_messages.values import BUCKETS, SLICES, Shard
from stretto_parameters.records import Code, Own, Progress, Records, judge
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.surroundings import chance, monotonic_s

from stretto_testing.checks import Check
from stretto_testing.loop import SimulatedLoop

COLUMNS, FIRST_SLICE = BUCKETS + SLICES, BUCKETS
HALVES = (range(COLUMNS // 2), range(COLUMNS // 2, COLUMNS))
BATCH, BATCHES_PER_SHARD = 8, 5
HEARTBEAT_S, ASKS_AFTER_END_S = 1.0, 2.0
ANSWER_S = 3.0
STEP_S = 0.15
"""Mean time of a step."""
Columns = NDArray[np.bool_]
"""A mask: [COLUMNS]"""
LOST_SHARE, LATE_S = 0.02, 10.0
"""Share of pushes whose request or answer is lost, and the longest time by which a lost request comes after all."""
DATA_WORKER_CORES = 0.5
RELEASED_SHARE = 0.002
"""Share of steps after which a worker gives its shard back."""


@dataclass(frozen=True, slots=True)
class ColumnImage:
    """The books of columns at one instant, and the truth about them."""

    progress: Progress
    counts: NDArray[np.int8]


class ColumnServer:
    """Columns of a job: the product's books about them, and beside these the truth, for every sample.

    ``counts`` [epochs, samples, columns]: how often each column has each sample.
    """

    def __init__(self, columns: range, epochs: int, samples: int) -> None:
        self.records = Records(COLUMNS, FIRST_SLICE)
        self.counts = np.zeros((epochs, samples, COLUMNS), np.int8)
        self.claim = np.zeros(COLUMNS, np.bool_)
        self.claim[columns.start : columns.stop] = True
        self.own = np.full(COLUMNS, Own.MINE, np.int64)
        self._audited = self.counts.copy()
        self._gone = np.zeros(COLUMNS, np.bool_)

    def audit(self, columns: Columns) -> None:
        """Keep what columns hold: their servers are asked for their books."""
        self._audited[:, :, columns] = self.counts[:, :, columns]

    def lose(self, columns: Columns) -> None:
        """Forget what columns hold: their server has died."""
        self.own[columns] = Own.NOT_MINE
        self.records.drop(columns)
        self.counts[:, :, columns] = 0
        self._gone |= columns

    def claimed(self, columns: Columns) -> None:
        """Let columns begin, empty, on a server of theirs."""
        self.lose(columns)
        self.own[columns] = Own.MINE
        self._gone &= ~columns

    def image(self) -> ColumnImage:
        """Return a copy of what all columns hold."""
        return ColumnImage(self.records.progress(), self.counts.copy())

    def load(self, columns: Columns, image: ColumnImage) -> None:
        """Let columns hold what they held at the time of an image."""
        self.claimed(columns)
        self.records.merge(columns, image.progress)
        self.counts[:, :, columns] = image.counts[:, :, columns]

    def reset(self) -> None:
        """Forget everything: the job goes back to a checkpoint."""
        self.lose(np.ones(COLUMNS, np.bool_))
        self.records.reset()

    def truth(self) -> NDArray[np.int8]:
        """Return how often each column has each sample; one whose server has died since, when its books were asked for:
        a job that is over needs no server.
        """
        return np.where(self._gone, self._audited, self.counts)

    def begin(self, shard: int, attempt: int) -> int | None:
        """Refuse lower attempts from now on; return how far all columns are with a shard, None: it is finished."""
        if shard in self.records.finished:
            return None
        far = int(self.records.offsets(shard)[self.claim].min())
        self.records.raise_attempt(shard, attempt)
        return far

    def push(self, shard: Shard, start: int, stop: int) -> Code:
        """Apply samples start..stop of a shard to every column that has not got them."""
        records = self.records
        offsets = records.offsets(shard.id)
        code = judge(self.claim, self.own, offsets, start, stop, records.is_stale(shard.id, shard.attempt))
        if code is Code.APPLIED:
            applied = self.claim & (offsets == start)
            records.account(shard.id, shard.attempt, start, stop, applied)
            self.counts[shard.epoch, shard.start + start : shard.start + stop] += applied
        return code


class Job:
    """A job and the truth about it. ``attempts``: the highest attempt of each shard that a worker was ever told."""

    def __init__(self, name: str, samples: int, epochs: int) -> None:
        self.name, self.samples, self.epochs = name, samples, epochs
        self.servers = [ColumnServer(half, epochs, samples) for half in HALVES]
        self.attempts: dict[int, int] = {}
        self.wrong: list[str] = []
        """Answers that a worker should not have got"""
        self.is_over = False
        """Everything that was to come of it has come: nothing is left to train, or its books are closed."""
        self.plan_version = 1
        self.troubled_until_s = 0.0
        """End of the last fault so far, on the loop's clock"""
        self.longest_wait_s = 0.0
        """Longest time that a request waited for its answer while there was no fault"""
        self.pods = count()
        self.servers_least = 1
        self.lineage = 0
        """Number of the return to a checkpoint that the columns come from; 0: none"""
        self.losses = 0
        """Parameter servers that died with columns"""
        self.images: dict[str, dict[int, ColumnImage]] = {}
        """Checkpoint -> column -> its image"""
        self.checkpoint_every_s: float | None = None
        """Interval of checkpoints; None: nobody would take one"""
        self.data_workers = 0
        self._surge = (0, 0.0, 0.0, 0)
        """Bytes of rows of earlier surges; begin and end of the last one on the loop's clock, and its bytes"""

    @property
    def submission(self) -> JobSubmitted:
        """Return the message that submits it."""
        data = {"samples": self.samples, "batch_size": BATCH, "batches_per_shard": BATCHES_PER_SHARD}
        document: dict[str, Any] = {
            "name": self.name,
            "model": {"entry": "m:M"},
            "dataset": data | {"epochs": self.epochs},
        }
        document["checkpoint"] = {"every_s": self.checkpoint_every_s}
        document["resources"] = {"ps": {"count": {"min": self.servers_least}}}
        if self.data_workers:
            each: dict[str, Any] = {"cpu_cores": DATA_WORKER_CORES, "memory": 1 << 28}
            document["resources"]["data"] = each | {"mode": "always", "count": self.data_workers}
        return JobSubmitted(job=self.name, spec=JobSpec.parse(document))

    def counted(self, column: int) -> tuple[int, str]:
        """Return the samples that a column counts, and their fingerprint."""
        records = self.servers[int(column in HALVES[1])].records
        return int(records.samples[column]), f"{int(records.fingerprints[column]) % 2**64:016x}"

    def missing_and_repeated(self) -> tuple[int, int]:
        """Return how many counts of samples are missing in all columns together, and how many are too many."""
        counts = np.sum([server.truth() for server in self.servers], axis=0)
        return int((counts == 0).sum()), int((counts > 1).sum())

    @property
    def has_checkpoint(self) -> bool:
        """True once every column of a checkpoint has its image."""
        return any(len(images) == COLUMNS for images in self.images.values())

    def each(self, columns: Iterable[int]) -> Iterator[tuple[ColumnServer, Columns]]:
        """Yield each half of the columns with the mask of those of `columns` in it."""
        mask = np.zeros(COLUMNS, np.bool_)
        mask[[*columns]] = True
        for server in self.servers:
            yield server, mask & server.claim

    def lose(self, columns: Iterable[int]) -> None:
        """Note that the server of columns has died."""
        self.losses += 1
        for server, mask in self.each(columns):
            server.lose(mask)

    def surge(self, lasts_s: float, size_bytes: int) -> None:
        """Let new rows of ``size_bytes`` come to all parameter servers together, from now on, and stay."""
        now_s = asyncio.get_running_loop().time()
        self._surge = self.surge_bytes(), now_s, now_s + lasts_s, size_bytes

    def surge_bytes(self) -> int:
        """Return the size of the rows that a surge has brought."""
        before_bytes, from_s, until_s, size_bytes = self._surge
        share = (asyncio.get_running_loop().time() - from_s) / (until_s - from_s) if until_s > from_s else 1.0
        return before_bytes + int(size_bytes * min(share, 1.0))

    def await_servers(self, checkpoint_every_s: float, servers_least: int) -> None:
        """Have no columns until parameter servers claim them, and take checkpoints."""
        self.checkpoint_every_s, self.servers_least = checkpoint_every_s, servers_least
        for server in self.servers:
            server.own[:] = Own.NOT_MINE

    def anew(self, name: str) -> Job:
        """Return the same job under another name, as it is submitted."""
        job = Job(name, self.samples, self.epochs)
        if self.checkpoint_every_s is not None:
            job.await_servers(self.checkpoint_every_s, self.servers_least)
        job.data_workers = self.data_workers
        return job

    def now(self) -> Job:
        """Return a copy of its books and of the truth about them."""
        then = copy.copy(self)
        then.servers, then.attempts = copy.deepcopy(self.servers), {**self.attempts}
        return then

    def go_back(self, then: Job, has_columns: bool) -> None:
        """Be what it was at a moment, without its workers; the checkpoints of today are there.

        ``has_columns``: the columns are those of then; else they are lost.
        """
        self.servers, self.attempts = then.servers, then.attempts
        self.lineage, self.losses, self.is_over = then.lineage, then.losses + 1, then.is_over
        for server in () if has_columns else self.servers:
            server.reset()

    def export(self, checkpoint: str, columns: Iterable[int]) -> None:
        """Keep images of columns."""
        kept = self.images.setdefault(checkpoint, {})
        for server, mask in self.each(columns):
            kept.update(dict.fromkeys(np.flatnonzero(mask).tolist(), server.image()))

    def load(self, checkpoint: str, columns: Sequence[int], lineage: int) -> None:
        """Bring columns back from their images; a lineage that is new replaces everything."""
        if lineage != self.lineage:
            self.lineage = lineage
            self.attempts.clear()
            for server in self.servers:
                server.reset()
        for column in columns:
            for server, mask in self.each([column]):
                if mask.any():
                    server.load(mask, self.images[checkpoint][column])


class SimulatedWorker:
    """A worker of a job: one lease at a time, a heartbeat a second, pushes in order, one at a time.

    With ``leaving`` it trains until that is set, and asks again also after the end; else it ends with the job.
    """

    def __init__(self, job: Job, pod: str, client: Client, leaving: asyncio.Event | None = None) -> None:
        self._job, self._pod, self._client, self._leaving = job, pod, client, leaving
        self._serial = count(1)
        self._held: Shard | None = None
        self._offset = 0
        self._is_stale = False
        self._lineage = self._losses = 0

    async def run(self) -> None:
        """Train until nothing is left, or the pod is to leave."""
        beating = asyncio.create_task(self._beat())
        done: ShardReport | None = None
        while not self._is_leaving:
            losses = self._job.losses  # before the request: the lease does not refer to servers that come after it
            reply = await self._next(done)
            done = None
            if reply.answer in ("end", "unknown"):
                if self._leaving is None:
                    self._job.is_over = self._job.is_over or reply.answer == "end"
                    break
                await asyncio.sleep(ASKS_AFTER_END_S)
                continue
            if reply.forget and reply.lineage == self._job.lineage:
                for server in self._job.servers:
                    server.records.finish(reply.forget)
            if reply.shard is None or reply.lineage != self._job.lineage:
                await asyncio.sleep(max(0.05, reply.wait_s))
                continue
            self._held, self._offset, self._is_stale = reply.shard, reply.shard.offset, False
            self._lineage, self._losses = reply.lineage, losses
            if await self._train(reply.shard):
                done = None if self._is_stale else ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)
            self._held = None
        beating.cancel()

    @property
    def _is_leaving(self) -> bool:
        return self._leaving is not None and self._leaving.is_set()

    async def _next(self, done: ShardReport | None) -> NextShardReply:
        """Ask for a shard, under one id until there is an answer."""
        asked = f"{self._pod}-next.{next(self._serial)}"
        request = NextShard(job=self._job.name, pod=self._pod, request_id=asked, complete=done, ahead=True)
        began_s = monotonic_s()
        while True:
            with contextlib.suppress(CallTimeout):
                reply: NextShardReply = await self._client.call(request, ANSWER_S)
                waited_s = monotonic_s() - max(began_s, self._job.troubled_until_s)
                self._job.longest_wait_s = max(waited_s, self._job.longest_wait_s)
                if reply.shard is not None:
                    self._told(reply.shard)
                return reply

    def _told(self, shard: Shard) -> None:
        attempts = self._job.attempts
        attempts[shard.id] = max(shard.attempt, attempts.get(shard.id, 0))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            shard = self._held
            if shard is None or self._is_stale:
                continue
            beat = ShardHeartbeat(
                job=self._job.name, pod=self._pod, shard=shard.id, attempt=shard.attempt, offset=self._offset,
                samples_per_s=1.0,
            )  # fmt: skip
            newest = self._job.attempts[shard.id]
            try:
                answer = (await self._client.call(beat, ANSWER_S)).answer
            except (CallTimeout, CallRefused):
                continue
            if answer == "ok" and newest > shard.attempt:
                text = f"{Check.LEASE}: {self._pod} goes on with attempt {shard.attempt} of {shard.id}, after {newest}"
                self._job.wrong.append(text)
            if answer == "stale" and self._held is shard:
                self._is_stale = True

    async def _train(self, shard: Shard) -> bool:
        """Train the rest of a shard; return whether all of it is applied."""
        if not await self._are_there():
            return False
        begun = [server.begin(shard.id, shard.attempt) for server in self._job.servers]
        known = [offset for offset in begun if offset is not None]
        self._offset = min(known, default=shard.length)
        while self._offset < shard.length:
            if self._is_stale:
                return False
            await asyncio.sleep(chance().expovariate(1 / STEP_S))
            stop = min(self._offset + BATCH, shard.length)
            for server in self._job.servers:
                while (code := await self._push(server, shard, self._offset, stop)) is Code.NOT_OWNED:
                    if not await self._are_there():
                        return False
                if code is not Code.APPLIED:
                    return False
            self._offset = stop
            if self._is_leaving or chance().random() < RELEASED_SHARE:
                await self._give_back(shard)
                return False
        return True

    async def _are_there(self) -> bool:
        """Wait until every column has a server; return whether the lease still is about these columns."""
        while True:
            if self._is_stale or self._lineage != self._job.lineage or self._losses != self._job.losses:
                return False
            if all((server.own[server.claim] == Own.MINE).all() for server in self._job.servers):
                return True
            await asyncio.sleep(0.1)

    async def _push(self, server: ColumnServer, shard: Shard, start: int, stop: int) -> Code:
        """Push until an answer comes; a request that is lost may arrive later, behind others."""
        lineage = self._lineage

        def push() -> Code:
            return server.push(shard, start, stop) if lineage == self._job.lineage else Code.STALE

        while True:
            await asyncio.sleep(chance().expovariate(1 / 0.002))
            lot = chance().random()
            if lot >= LOST_SHARE:
                return push()
            if lot < LOST_SHARE / 2:
                push()  # applied, and the answer is lost
            else:
                _later(chance().uniform(0, LATE_S), push)
            await asyncio.sleep(1.0)

    async def _give_back(self, shard: Shard) -> None:
        request = ReleaseShard(
            job=self._job.name, pod=self._pod, shard=shard.id, attempt=shard.attempt, offset=self._offset
        )
        with contextlib.suppress(CallTimeout, CallRefused):
            await self._client.call(request, ANSWER_S)


def _later(delay_s: float, push: Callable[[], object]) -> None:
    """Push some time later, whatever has become of the worker by then."""
    loop = cast(SimulatedLoop, asyncio.get_running_loop())
    loop.call_later(delay_s, push, context=loop.root.context)

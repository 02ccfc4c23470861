"""The batches of a worker's program: cut from leased shards, and counted once the program asks for the next one."""

from __future__ import annotations

import threading
import time

from stretto_messages.dispatcher import NextShardReply
from stretto_messages.values import Shard

from ..agent import AHEAD_S, BATCH, BATCHES, END, LEAVE, REFUSED
from ..worker.leases import Leases
from ..worker.step_timer import StepTime, StepTimer

LEFT = "the loop over samples() was left in the middle of a batch, which the parameters may have: end the program"
AGAIN_S = 0.2
"""Pause before the dispatcher is asked again that did not answer."""


class Batches:
    """The batches of one program, which asks from one thread at a time."""

    def __init__(
        self,
        leases: Leases,
        meter: StepTimer,
        batch_size: int,
        leaving: threading.Event,
        *,
        consistent: bool = False,
        least: int = 0,
        release_s: float = 0.0,
        tells_likely: bool = False,
    ) -> None:
        self._consistent = consistent
        """The program's parameters and the ledger go back together (level 2)."""
        self.lost = False
        """True once the program's parameters have samples that others may train: it has to begin anew."""
        self._leases = leases
        self._meter = meter
        self._batch_size, self._least = batch_size, least
        """Samples of a batch, and the fewest that are left of a shard if any are; twice those fit into a batch."""
        self._release_s = release_s
        """Seconds for which the dispatcher is told what comes back, where the pod goes on: it would get it again."""
        self._tells_likely = tells_likely
        """True if an answer has the batch that most likely follows, too: data workers compute its items meanwhile."""
        self._ahead = 1
        """The batches that fit into AHEAD_S at the pace of the last answer's."""
        self._trained = 0
        """Batches of the last answer that count as trained."""
        self._leaving = leaving
        self.is_left = False
        """True once a program of level 2 has left its loop in the middle of a batch: it gets no other one."""
        self._given = 0
        """Samples that the program was given and that do not count as trained: one batch, or several."""
        self._given_at_s = 0.0
        self._begun = 0
        """Samples of the lease that the program may have worked on and that do not count as trained: those that it was
        given, and of a loop that was left the batch that it was left in."""
        self.ended = False
        """True once the program was told that there are no more samples."""
        self.over = False
        """True once the program is gone: whatever it asked for last, it gets nothing more."""

    def next(self, *, several: bool = False) -> str:
        """Count the last batch as trained, and return the answer with the next one.

        ``several``: the answer may have more batches, of which the next request tells how many were taken.
        """
        if self.is_left:
            return f"{REFUSED} {LEFT}"
        self.passed()
        while True:
            if self._consistent and self._leaving.is_set():  # the program may save before it ends, under its lease
                return LEAVE
            self._settle()
            shard = self._leases.shard
            if self.over or self.lost:
                return LEAVE
            if self._leaving.is_set():
                self.give_back()
                return LEAVE
            if shard is not None:
                first = shard.start + self._leases.offset
                return self._give(shard, first, shard.length - self._leases.offset, several)
            reply = self._leases.next(0)
            if reply is not None and reply.stale:  # the shard is trained again, and the parameters have it
                self.lost |= self._consistent
            if reply is not None and reply.answer == "end" and not self.lost:
                self.ended = True
                return END
            self._wait(reply)

    def _give(self, shard: Shard, first: int, left: int, several: bool) -> str:
        """Return the answer with what follows of the shard, of which ``left`` samples were in no batch yet."""
        size = self._size(left)
        self._given = self._begun = min(size * self._ahead, left) if several else size
        self._given_at_s, self._trained = time.monotonic(), 0
        if self._given > size:
            return f"{BATCHES} {first} {first + self._given} {size}"
        return f"{BATCH} {first} {first + self._given}{self._likely(shard, first + self._given)}"

    def took(self, first: int, stop: int) -> None:
        """Count what was given as trained up to the batch that the program took last, which it may work on."""
        shard = self._leases.shard
        if shard is None or not self._given:
            return
        begun = shard.start + self._leases.offset
        first, stop = (min(max(number, begun), begun + self._given) for number in (first, stop))
        if trained := first - begun:
            self._count(trained, -(-trained // self._batch_size))
        self._given = self._begun = max(stop - first, 0)

    def _likely(self, shard: Shard, first: int) -> str:
        """Return the numbers of the batch that most likely follows, with a space before each; empty: nobody knows.

        Behind the last batch of a shard this is the first one of the shard that the dispatcher has reserved.
        """
        left, ahead = shard.start + shard.length - first, self._leases.ahead
        if not left and ahead is not None:
            first, left = ahead.start + ahead.offset, ahead.length - ahead.offset
        return f" {first} {first + self._size(left)}" if self._tells_likely and left else ""

    def _size(self, left: int) -> int:
        """Return how many samples the next batch has. ``left``: those of its shard that were in no batch yet."""
        return left if left <= self._batch_size else min(self._batch_size, left - self._least)

    def _wait(self, reply: NextShardReply | None) -> None:
        if reply is None:
            self._leaving.wait(AGAIN_S)
        elif reply.shard is None:
            self._meter.idle()
            self._leases.wait(reply)

    def passed(self) -> None:
        """Count the last batch as trained."""
        if self._given:
            self._count(self._given, 1)
            self._given = self._begun = 0

    def _count(self, samples: int, batches: int) -> None:
        now_s = time.monotonic()
        self._leases.passed(self._leases.offset + samples)
        self._meter.step(self._given_at_s, now_s, samples, StepTime(), batches)
        self._trained += batches
        self._ahead = max(1, int(AHEAD_S * self._trained / max(now_s - self._given_at_s, 1e-6)))

    def _settle(self) -> None:
        """Report a shard that is over, and let go of one that another worker has by now."""
        shard = self._leases.shard
        if shard is None:
            return
        if not self._leases.current:
            self._leases.drop()
            self._begun = 0
            self.lost |= self._consistent
        elif self._leases.offset >= shard.length:
            self._leases.completed()

    def forget(self) -> None:
        """Count the batch that the program works on as not trained: the program has left its loop."""
        self.is_left |= self._consistent and self._given > 0  # nobody knows whether its parameters have the batch
        self._given = 0
        self._meter.idle()

    def give_back(self, failure: str | None = None) -> None:
        """Return what the program has not trained; ``failure``: it ended with an error, by its last words.

        The batch that the program was in the middle of counts as perhaps repeated. At level 2 a shard that is over is
        not reported: the books go back to the last checkpoint, which those of a completed job do not.
        """
        if not self._consistent:
            self._settle()
            if self._leases.shard is None and self._leases.has_report:
                self._leases.next(0)  # reports the shard that is over; one that the reply leases is returned at once
        if self._release_s and self._leases.shard is not None:
            self._leases.beat()
        self._leases.release(self._leases.offset, failure, self._begun, self._release_s)
        self._begun = 0

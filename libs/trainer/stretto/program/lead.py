"""The first rank of a program leases for all of them, and each step begins once every rank stands before it.

To the dispatcher the ranks are one worker. Whoever is the first of a group leases a shard, cuts it into steps and each
step into as many parts as there are ranks: no rank has a step more than another one, and none is without a sample, so
that the collectives of all ranks match. While all ranks stand before a step, the books and the parameters of rank 0 are
of one instant: that is where a checkpoint is taken, and where ranks are told to leave. A group ends with each change of
its members, and another one begins.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

from stretto_plane import Peer

from ..agent import BATCH, CHECKPOINT, DONE, END, LEAVE, NEXT, REFUSED, RESTORED, SAVE, SAVED, UNSAVED
from ..errors import BusError
from ..worker.leases import Leases
from .batches import Batches
from .consistent import Consistent

AGAIN, GO, BLAMED, SPARED = "again", "go", "blamed", "spared"
"""First words of answers between workers: ask once more; the program may start; it has failed; another one has."""
WAIT_S = 2.0
"""Longest time that a request waits for the other ranks before it is asked again."""
LOOK_S = 0.2
GONE_S = 5.0
"""Seconds after the end of a rank's connection until it counts as gone: it may connect again."""
BLAME_S = 5.0
"""Seconds after the first failure of a rank's program until it is blamed: if a worker was lost, all of them fail."""
_ALONE = "checkpoint was called where rank 0 did not call it: call it at the same step in all ranks, or in rank 0 alone"
_NO_LEVEL = "checkpoints are of level 2; state program.level: 2"


class _Asked(NamedTuple):
    number: int
    request: str


class Failure(NamedTuple):
    """The first program of a group that has failed, and when."""

    rank: int
    status: int
    at_s: float


class Lead:
    """The steps of one group. Each rank asks from one thread at a time, under numbers that grow.

    ``stop`` is set once the group is to end.
    """

    def __init__(
        self,
        ranks: int,
        leases: Leases,
        batches: Batches,
        consistent: Consistent | None,
        stop: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        self.leases, self.batches, self.consistent, self.stop = leases, batches, consistent, stop
        self._clock = clock
        self._turn = threading.Condition()
        self._waiting: dict[int, _Asked] = {}
        """Requests that are answered once those of the other ranks are there."""
        self._answered: dict[int, tuple[int, str]] = {}
        """The last answer to each rank, with its request's number."""
        self._peers: dict[int, weakref.ref[Peer]] = {}
        """The last connection of each rank of another worker."""
        self._hung_up_at_s: dict[int, float] = {}
        self._is_broken = False
        """True once a rank was gone before a step in which it had a part, which nobody knows to be trained."""
        self._joined: set[int] = set()
        self._heard: set[int] = set()
        """Ranks that were told that all samples are over."""
        self._loaded: set[int] = set()
        """Ranks that have asked for the last checkpoint."""
        self._ranks = range(ranks)
        self._address = ""
        self._reserved: socket.socket | None = None
        self._told = ""
        """The word by which all ranks were told that there are no more steps in this group."""
        self.failure: Failure | None = None
        self._is_blamed = False

    # --- the beginning and the end of a group -----------------------------------------------------------------

    def join(self, rank: int, peer: Peer | None = None) -> str:
        """Take a rank in whose program does not run; return where rank 0 listens, once all may start."""
        with self._turn:
            self._note(rank, peer)
            self._joined.add(rank)
            return f"{GO} {self._address}" if self._address else AGAIN

    @property
    def is_complete(self) -> bool:
        """True once all ranks have joined: the programs of earlier groups have ended."""
        with self._turn:
            return self._joined >= {*self._ranks}

    @property
    def is_heard(self) -> bool:
        """True once no rank waits to be told that all samples are over."""
        with self._turn:
            return all(rank in self._heard or self._is_gone(rank) for rank in self._ranks)

    def begin(self, host: str, port: int) -> None:
        """Go back to the last checkpoint, and let all programs start, of which that of rank 0 listens at this port.

        ``port``: 0, and the kernel chooses one. Two sockets may have one port while neither listens (SO_REUSEADDR on
        Linux): so nobody else gets it before the program listens there. Raises DataError; BusError: the group is to
        end.
        """
        if self.consistent is not None:
            self.consistent.begin()
        if not port:
            self._reserved = socket.socket()
            self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._reserved.bind(("", 0))
            port = self._reserved.getsockname()[1]
        with self._turn:
            self._address = f"{host} {port}"

    def end(self) -> None:
        """Let no further step begin: the program of rank 0 is gone."""
        self.batches.over = True
        self._answer(self._end(self._told or LEAVE))

    def close(self, failure: str | None) -> None:
        """Give back what no rank has trained. ``failure``: how a rank ended."""
        self.batches.give_back(failure)
        if self._reserved is not None:
            self._reserved.close()

    def failed(self, rank: int, status: int, peer: Peer | None = None) -> str:
        """Return whether a program that has failed is to blame for it: the first one is, if no worker was lost.

        The connection of a lost worker is over before the actuator knows of its end.
        """
        with self._turn:
            self._note(rank, peer)
            self.failure = first = self.failure or Failure(rank, status, self._clock())
            self._turn.notify_all()
            is_lost = any(other != first.rank and self._has_hung_up(other) for other in self._ranks)
        if self.stop.is_set() or is_lost:
            return SPARED
        if self._clock() - first.at_s < BLAME_S:
            return AGAIN
        if first.rank != rank:
            return SPARED
        self._is_blamed = True
        return BLAMED

    @property
    def is_settled(self) -> bool:
        """True unless a rank of another worker has failed that still has to hear whether it is to blame."""
        with self._turn:
            failed = self.failure.rank if self.failure is not None else 0
            return failed == 0 or self._is_blamed or self._has_hung_up(failed)

    # --- steps ------------------------------------------------------------------------------------------------

    def ask(self, rank: int, number: int, request: str, peer: Peer | None = None) -> str:
        """Return the answer to a rank's program; AGAIN: the same request is to be asked once more.

        An answer is kept until the rank asks for another one. The thread of rank 0 decides for all: it may wait for a
        shard as long as it takes, while the others are asked to come again.
        """
        until_s = self._clock() + WAIT_S
        with self._turn:
            self._note(rank, peer)
            if (known := self._known(rank, number)) is not None:
                return known
            waits = request in (NEXT, CHECKPOINT) and not self._told
            if waits:
                self._waiting[rank] = _Asked(number, request)
                self._turn.notify_all()
        if not waits:
            answer = self._direct(rank, request)
            with self._turn:
                self._answered[rank] = number, answer
            return answer
        while True:
            if rank == 0:
                self._decide()
            with self._turn:
                if (known := self._known(rank, number)) is not None:
                    return known
                left_s = until_s - self._clock()
                if left_s <= 0:
                    return AGAIN
                self._turn.wait(min(left_s, LOOK_S))

    def _known(self, rank: int, number: int) -> str | None:
        """Return the answer to this request, if there is one."""
        known = self._answered.get(rank)
        if known is None or known[0] != number:
            return None
        if known[1] == END:
            self._heard.add(rank)
        return known[1]

    def _note(self, rank: int, peer: Peer | None) -> None:
        if peer is not None:
            self._peers[rank] = weakref.ref(peer)

    def _is_gone(self, rank: int) -> bool:
        """Return True if the rank's program has failed, or the connection of its worker is over for long."""
        if self.failure is not None and self.failure.rank == rank:
            return True
        if not self._has_hung_up(rank):
            self._hung_up_at_s.pop(rank, None)
            return False
        now_s = self._clock()
        return now_s - self._hung_up_at_s.setdefault(rank, now_s) >= GONE_S

    def _has_hung_up(self, rank: int) -> bool:
        peer = self._peers.get(rank)
        return peer is not None and peer() is None

    def _answer(self, answers: dict[int, str]) -> None:
        """Give each rank that waits its answer."""
        with self._turn:
            for rank, answer in answers.items():
                if (asked := self._waiting.pop(rank, None)) is not None:
                    self._answered[rank] = asked.number, answer
            self._turn.notify_all()

    def _decide(self) -> None:
        """Answer those that wait, once all ranks do; once those do that are left, tell them to leave."""
        with self._turn:
            waiting = {rank: asked.request for rank, asked in self._waiting.items()}
            others = [rank for rank in self._ranks if rank not in waiting]
            if not all(map(self._is_gone, others)):
                return
            self._is_broken |= bool(others)
        self._answer(self._end(LEAVE) if others else self._step(waiting))

    def _end(self, word: str) -> dict[int, str]:
        """Return the answer to all ranks that there are no more steps in this group."""
        with self._turn:
            self._told = word
            return dict.fromkeys(self._ranks, word)

    def _step(self, waiting: dict[int, str]) -> dict[int, str]:
        """Return the answers to requests of all ranks, which stand before one step."""
        if waiting[0] == CHECKPOINT:
            answer = self._of_checkpoints(CHECKPOINT)
            if answer.startswith(SAVE):
                return {0: answer}  # the others wait until rank 0 has saved
            return self._end(LEAVE) if answer == LEAVE else self._all_saving(answer)
        if CHECKPOINT in waiting.values():
            return self._all_saving(f"{REFUSED} {_ALONE}")
        word, *numbers = self.batches.next().split()
        if word != BATCH:
            return self._end(word)
        step, *likely = zip(*[map(int, numbers)] * 2, strict=True)
        parts = [self._divided(*each) for each in (step, *likely)]
        return {rank: " ".join((BATCH, *(each[rank] for each in parts))) for rank in self._ranks}

    def _divided(self, first: int, stop: int) -> list[str]:
        """Return the numbers of each rank's part of a step."""
        ends = [first + (stop - first) * rank // len(self._ranks) for rank in (*self._ranks, len(self._ranks))]
        return [f"{ends[rank]} {ends[rank + 1]}" for rank in self._ranks]

    def _all_saving(self, answer: str) -> dict[int, str]:
        with self._turn:
            return {rank: answer for rank, asked in self._waiting.items() if asked.request == CHECKPOINT}

    def _direct(self, rank: int, request: str) -> str:
        """Return the answer to a request that waits for no other rank."""
        if request == RESTORED:
            self._loaded.add(rank)
            return self._of_checkpoints(request)
        if rank == 0 and request in (SAVED, UNSAVED):
            answer = self._of_checkpoints(request)
            self._answer(self._all_saving(answer if answer.startswith(DONE) else DONE))
            return answer
        if rank == 0 and request == CHECKPOINT:
            return LEAVE if self._is_broken else self._of_checkpoints(request)
        return self._told if request == NEXT else DONE

    def _of_checkpoints(self, request: str) -> str:
        if self.consistent is None:
            return f"{REFUSED} {request}: {_NO_LEVEL}"
        try:
            return self.consistent.answer(request)
        except BusError:  # the group is to end, and nobody has answered
            return LEAVE

    def refusal(self, rank: int) -> str:
        """Why a rank gets no batch; empty: it may have one."""
        return "" if self.consistent is None or rank in self._loaded else self.consistent.to_load

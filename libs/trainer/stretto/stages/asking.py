"""A worker asks one of the next stage's for the rest of a step, and another one if that does not answer.

Members of a stage may have different devices. Each worker takes them in turn so that each has a share of its steps by
its speed (stride scheduling, Waldspurger & Weihl 1995): a member's pass grows with each step by what its steps usually
take, and the member with the least pass is asked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stretto_parameters import InputRefused
from stretto_pipeline.arrays import Reader, Writer
from stretto_pipeline.errors import ArraysRefused
from stretto_plane import Connection, PlaneError

from ..engine.link import Access
from ..errors import ModelRefused
from ..parts import Returned
from .messages import Asked, MessageRefused, StageMessage, StepRefused, read_answer, read_refusal, step_request

log = logging.getLogger("stretto.stages")

CONNECT_S = 5.0
SMOOTHING = 0.2
"""Weight of the last step in what a member's steps usually take (taste: some five steps)."""
PATIENCE_S = 20.0
"""Time for a member's answer beyond four of its usual steps: less than the two minutes after which a worker counts as
hanging, so that another member is asked before."""
AVOIDED_S, AVOIDED_MOST_S = 2.0, 300.0
"""Bounds of the time for which a member that has failed is not asked: twice what the try took, and twice as long with
each further failure. So a member that hangs costs a small share of the time, however long it hangs."""


class Member(NamedTuple):
    """A worker of the next stage: where it is reached, and the first layer that it computes."""

    address: str
    first_layer: int


class NextStage:
    """The members of the next stage. Thread-safe. ``worker``: the number of the worker that asks."""

    def __init__(self, worker: int, access: Access, clock: Callable[[], float], patience_s: float = PATIENCE_S) -> None:
        self._worker, self._access, self._clock, self._patience_s = worker, access, clock, patience_s
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}

    def use(self, members: Mapping[int, Member]) -> None:
        """Ask these from the next step on, by their numbers. Steps that others have in hand end."""
        numbers = sorted(members)
        first = self._worker % max(1, len(numbers))  # workers begin at different ones
        with self._lock:
            least_s = min((each.pass_s for each in self._known.values()), default=0.0)
            before, self._known = self._known, {}
            for number in numbers[first:] + numbers[:first]:
                known = before.get(number)
                if known is None or known.member != members[number]:
                    known = _Known(members[number], self._access, least_s)
                self._known[number] = known
            gone = [each for number, each in before.items() if self._known.get(number) is not each]
        for each in gone:
            each.close()
        if gone or len(before) < len(numbers):
            log.info("next stage: %s", ", ".join(f"worker-{number}" for number in numbers) or "none")

    @property
    def first_layer(self) -> int | None:
        """The first layer of the member whose turn it is; None while there is no member."""
        with self._lock:
            turns = self._turns()
            return turns[0][1].member.first_layer if turns else None

    def ask(self, asked: Asked) -> Returned | None:
        """Return the answer of a member with this first layer, each asked once at most; None if none answers in time.

        Raises OtherBooks, and the errors of the batch or its lease that a stage finds.
        """
        with self._lock:
            turns = [each for each in self._turns() if each[1].member.first_layer == asked.first_layer]
        each_s = self._patience_s + 4 * max((known.usual_s for _, known in turns), default=0.0)
        left_s = 2 * each_s  # for all of them together: the worker can compute the step by itself
        for number, known in turns:
            begun_s = self._clock()
            try:
                answer = known.ask(asked, min(each_s, left_s))
            except (PlaneError, StepRefused, InputRefused, ArraysRefused) as error:
                log.warning("worker-%d of the next stage: %s", number, error)
                known.failed(begun_s, self._clock())
                known.pass_s = max(each.pass_s for _, each in turns)  # else it would have all steps once it is back
                left_s -= self._clock() - begun_s
                if left_s <= 0:
                    return None
            else:
                known.took(self._clock() - begun_s)
                return answer
        return None

    def close(self) -> None:
        """Close all connections."""
        self.use({})

    def _turns(self) -> list[tuple[int, _Known]]:
        """Return members in the order in which they are to be asked, without those that have failed lately."""
        now_s = self._clock()
        asked = [each for each in self._known.items() if now_s >= each[1].avoided_until_s]
        return sorted(asked, key=lambda each: each[1].pass_s)


class _Known:
    """A member as this worker has found it: its connections, what its steps take, and its pass in seconds."""

    def __init__(self, member: Member, access: Access, pass_s: float) -> None:
        self.member, self.pass_s = member, pass_s
        self.usual_s, self.avoided_until_s = 0.0, float("-inf")
        self._failures = 0
        self._knows_pipelines = True
        """False: the member is of the release before, which refuses STEP_IN_PIPELINE."""
        self._access = access
        self._lock = threading.Lock()
        self._idle: list[tuple[Connection, Writer, Reader]] = []
        self._is_closed = False

    def took(self, step_s: float) -> None:
        """Note what a step has taken."""
        self._failures = 0
        self.usual_s += (SMOOTHING if self.usual_s else 1.0) * (step_s - self.usual_s)
        self.pass_s += self.usual_s

    def failed(self, begun_s: float, ended_s: float) -> None:
        """Note a try that has failed: the member is avoided for a while."""
        for_s = max(AVOIDED_S, 2 * (ended_s - begun_s)) * 2.0**self._failures
        self.avoided_until_s = ended_s + min(for_s, AVOIDED_MOST_S)
        self._failures = min(self._failures + 1, 16)

    def ask(self, asked: Asked, timeout_s: float) -> Returned:
        """Return the member's answer. Raises PlaneError, StepRefused, InputRefused, ArraysRefused: another may answer;
        other errors of the stage."""
        fresh = asked._replace(is_fresh=True)
        if asked.is_fresh or not self._knows_pipelines:
            return self._answer(fresh, timeout_s)
        try:
            return self._answer(asked, timeout_s)
        except MessageRefused:
            answer = self._answer(fresh, timeout_s)
            self._knows_pipelines = False
            return answer

    def _answer(self, asked: Asked, timeout_s: float) -> Returned:
        with self._lock:
            taken = self._idle.pop() if self._idle else None
        connection, writer, reader = taken = taken or (self._opened(), Writer(), Reader())
        is_usable = False
        try:
            message = connection.call(asked.kind, _request(asked, writer), timeout_s)
            if message.kind != StageMessage.ANSWER:
                refusal = read_refusal(message.parts)
                is_usable = not isinstance(refusal, MessageRefused)
                raise refusal
            answer = read_answer(message.parts, reader)
            is_usable = True
            return answer
        finally:
            with self._lock:
                is_usable = is_usable and not self._is_closed
                if is_usable:
                    self._idle.append(taken)
            if not is_usable:
                connection.close()

    def _opened(self) -> Connection:
        return Connection(self.member.address, self._access.key, timeout_s=CONNECT_S, encrypted=self._access.encrypted)

    def close(self) -> None:
        """Close the connections that are idle now, and the others once they are."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection, _, _ in idle:
            connection.close()


def _request(asked: Asked, writer: Writer) -> list[Any]:
    """Raises ModelRefused for a batch that cannot travel."""
    try:
        return step_request(asked, writer)
    except ArraysRefused as error:
        raise ModelRefused(
            f"a batch cannot be sent to another stage: {error}; or set resources.workers.stages: 1"
        ) from error

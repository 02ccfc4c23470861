"""A stage serves steps: it pulls its part of the dense parameters, computes, asks the next stage, pushes, answers.

A column has a batch once, whoever computes the batch how often: each stage pushes its own dense slices under the claim
of the request before it answers, and servers skip a column that has the batch (`stretto_parameters.records`). So a
request that is repeated, at this worker or at another one, is harmless, and so is an answer that is lost. The stage
behind the rows pushes their gradients in the same message: each server is asked once for both, and they travel once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from stretto_parameters import InputRefused
from stretto_pipeline.arrays import Reader, Writer
from stretto_pipeline.errors import ArraysRefused
from stretto_plane import Listener, Message, Peer

from ..engine.client import Parameters
from ..engine.layout import I64, Bools, Layout
from ..engine.link import Access
from ..engine.pulling import PULL_KEPT_S, Pulled
from ..errors import OwnershipUnknown, ServerLost, StrettoError
from ..parts import FIRST_LAYER, Found, Given, Part, Returned, no_keys
from .asking import NextStage
from .messages import Asked, OtherBooks, StageMessage, StepRefused, answer_parts, read_step, refusal_parts

log = logging.getLogger("stretto.stages")

REQUEST_BYTES_MAX = 2**31
"""Bytes of a request, which who has the job's key alone can send."""
LEAVE_S = 10.0
"""Time that a stage which leaves gives to the steps that it has in hand: one of a large model takes seconds."""
LOOK_S = 0.02

Parts = Callable[[int, int | None], Part]
"""Returns the layers from one on, up to another one, or to the end of the model (None). Raises ModelRefused."""


class Served(NamedTuple):
    """The times of a step that was served: computing in the stage's turn, pulling and pushing; and when it ended."""

    ended_s: float
    compute_s: float
    exchange_s: float


class Stage:
    """The steps that a worker computes for others: several pull and push at a time, and one computes.

    ``parts``: of the model. ``first_layer``: the first one that is computed here. ``following``: the next stage; while
    it has no member, or none that answers, the layers up to the end are computed here. ``served`` is called after each
    step. All steps are refused until there are ``parameters``, and once ``is_leaving``.
    """

    def __init__(
        self,
        parts: Parts,
        layout: Layout,
        first_layer: int,
        following: NextStage,
        clock: Callable[[], float],
        served: Callable[[Served], None] = lambda _: None,
    ) -> None:
        self.layout, self.first_layer, self.following = layout, first_layer, following
        self.clock, self.served = clock, served
        self.turn = threading.Lock()
        """Held by the step that computes."""
        self.parameters: Parameters | None = None
        self.is_leaving = False
        self._parts, self._making = parts, threading.Lock()
        self._made: dict[int | None, Part] = {}
        self._kept: deque[_Pulled] = deque(maxlen=1)
        """The values that came with the last push, until a step takes them; taking is atomic, as steps overlap."""

    def part(self, until: int | None) -> Part:
        """Return the layers from the first one up to this one. Raises ModelRefused."""
        with self._making:
            if until not in self._made:
                self._made[until] = self._parts(self.first_layer, until)
            return self._made[until]

    def take_newest(self, part: Part, generation: int) -> Pulled | None:
        """Take the values that came with the last push, if they are of such a part, of this generation and young.

        Values serve one step, as those of a pull: where pushes bring none, steps pull rather than share old values.
        """
        try:
            found = self._kept.pop()
        except IndexError:
            return None
        is_same = found.part is part and found.generation == generation
        return found.values if is_same and self.clock() - found.at_s < PULL_KEPT_S else None

    def note(self, part: Part, generation: int, values: Pulled) -> None:
        """Note the values that came with a push."""
        self._kept.append(_Pulled(part, generation, values, self.clock()))

    def step(self, asked: Asked) -> Returned:
        """Compute a step and push its gradients. Raises StepRefused, OtherBooks, or an error of the batch or lease."""
        if asked.first_layer != self.first_layer:
            raise StepRefused(f"layer {asked.first_layer} is asked for, and this stage begins with {self.first_layer}")
        if self.parameters is None or self.is_leaving:
            raise StepRefused("this worker leaves" if self.is_leaving else "no parameter servers are known here yet")
        try:
            generation = self.parameters.routes.generation_of(asked.books)
            if generation is None:
                raise OtherBooks(f"the lease of shard {asked.claim.shard} is of servers that this stage does not know")
            step = _Step(self, self.parameters, asked, generation)
            found = step.computed(self.following.first_layer) or step.computed(None)
            assert found is not None, "without a next stage nobody is asked"
            step.push(found)
        except (ServerLost, OwnershipUnknown) as error:
            raise StepRefused(str(error)) from error
        self.served(Served(self.clock(), step.compute_s, step.exchange_s))
        return found.answer._replace(rows=(), row_squares=())


class _Pulled(NamedTuple):
    """The values of a part's dense slices, of which generation of the servers they are, and when they came."""

    part: Part
    generation: int
    values: Pulled
    at_s: float


class _NoAnswer(Exception):
    """No member of the next stage has answered."""


class _Step:
    """One step of a stage, and its times. As a context it is the step's turn to compute."""

    def __init__(self, stage: Stage, parameters: Parameters, asked: Asked, generation: int) -> None:
        self._stage, self._parameters, self._asked, self._generation = stage, parameters, asked, generation
        self.compute_s = self.exchange_s = self._since_s = 0.0
        self._part: Part | None = None

    def computed(self, until: int | None) -> Found | None:
        """Return the outcome of the layers up to this one; None if the next stage does not answer."""
        self._part = part = self._stage.part(until)
        begun_s = self._stage.clock()
        newest = None if self._asked.is_fresh else self._stage.take_newest(part, self._generation)
        pulled = newest or self._parameters.pull_slices(part.pulled)
        self.exchange_s += self._stage.clock() - begun_s

        def rest(given: Given) -> Returned:
            assert until is not None
            answer = self._stage.following.ask(self._asked._replace(first_layer=until, given=given))
            if answer is None:
                raise _NoAnswer
            return answer

        try:
            return part.step(self._asked.given, pulled.dense, pulled.state, rest, self)
        except _NoAnswer:
            return None

    def push(self, found: Found) -> None:
        """Push the gradients of the stage's own slices, and of the rows if the stage stands right behind them.

        In a pipeline the slices that the next step takes come with it.
        """
        assert self._part is not None
        along = None if self._asked.is_fresh else self._parameters.slices_along(self._part.pulled)
        begun_s = self._stage.clock()
        shard, attempt, start, stop = self._asked.claim
        layout, has_rows = self._stage.layout, self._stage.first_layer == FIRST_LAYER
        answer = found.answer
        self._parameters.push(
            self._asked.given.keys if has_rows else no_keys(layout),
            answer.rows if has_rows else [np.zeros((0, table.dimension), np.float32) for table in layout.tables],
            found.dense,
            shard=shard,
            attempt=attempt,
            start=start,
            stop=stop,
            row_squares=answer.row_squares,
            dense_squares=found.dense_squares,
            state_delta=found.state_delta if len(found.state_delta) else None,
            generation=self._generation,
            lineage=self._asked.lineage,
            columns=columns_of(layout, self._part.pushed, has_rows),
            along=along,
        )
        if along is not None and along.future.done():
            self._stage.note(self._part, self._generation, along.future.result())
        self.exchange_s += self._stage.clock() - begun_s

    def __enter__(self) -> None:
        self._stage.turn.acquire()
        self._since_s = self._stage.clock()

    def __exit__(self, *_: object) -> None:
        self.compute_s += self._stage.clock() - self._since_s
        self._stage.turn.release()


def columns_of(layout: Layout, slices: I64, has_rows: bool) -> Bools:
    """Return the columns of these dense slices, and of all rows if they are the stage's, too: [columns]."""
    columns = np.zeros(layout.columns, np.bool_)
    columns[: layout.buckets] = has_rows
    columns[layout.buckets + slices] = True
    return columns


class StageServer:
    """Serves a stage at an address."""

    def __init__(self, stage: Stage, address: str, access: Access) -> None:
        self.stage = stage
        self._wires: WeakKeyDictionary[Peer, tuple[Reader, Writer]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._in_hand = 0
        self._listener = Listener(
            address, self._handle, access.key, size_bytes_max=REQUEST_BYTES_MAX, encrypted=access.encrypted
        )
        self.address = self._listener.address

    def leave(self) -> None:
        """Refuse steps from now on, so that others are asked; end when those in hand have ended, or after LEAVE_S."""
        self.stage.is_leaving = True
        end_s = time.monotonic() + LEAVE_S
        while self._in_hand and time.monotonic() < end_s:
            time.sleep(LOOK_S)
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._listener.close()

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        """Returned a request for a step. Whatever does not fit is refused, and changes nothing."""
        with self._lock:
            reader, writer = self._wires.setdefault(peer, (Reader(), Writer()))
            self._in_hand += 1
        try:
            answer = self.stage.step(read_step(message.kind, message.parts, reader))
            return StageMessage.ANSWER, answer_parts(answer, writer)
        except (StrettoError, InputRefused, ArraysRefused) as error:
            log.info("refused a step of %s: %s", peer.address, error)
            return StageMessage.REFUSED, refusal_parts(error)
        finally:
            with self._lock:
                self._in_hand -= 1

"""The messages between stages: a step that is asked for, and its answer. Pure.

A request has the head i64 (shard, attempt, start, stop, worker, lineage or -1, first layer), the name of the books that
the lease belongs to, and arrays (`stretto_pipeline.arrays`): a prepared batch with its rows, or the tensors that cross
the cut with the labels. An answer has arrays: the loss, and what comes back over the cut. A refusal has the name of an
error and its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple, cast

import numpy as np
from stretto_parameters import Claim, InputRefused
from stretto_parameters.keys import KeyBatch
from stretto_pipeline.arrays import Arrays, Reader, Writer
from stretto_pipeline.errors import ArraysRefused

from ..batches.preparation import arrays_of, prepared_of
from ..engine.transfer import array_of
from ..errors import (
    BatchMisaligned,
    DataError,
    ModelRefused,
    ProgressGap,
    ServersReplaced,
    StaleAttempt,
    StrettoError,
)
from ..model.reading import Prepared
from ..parts import Given, Returned

_HEAD = 7
_TOLD = (StaleAttempt, ProgressGap, ServersReplaced, BatchMisaligned, ModelRefused, DataError)
"""Errors of a step that mean the same to whoever asked for it."""


class StageMessage(IntEnum):
    """The kinds of messages between stages."""

    STEP = 2
    """1 was a step whose rows the worker that asks was to push."""
    STEP_IN_PIPELINE = 3
    """A step whose dense values may be those that came with the last push."""
    ANSWER = 16
    REFUSED = 17


class OtherBooks(StrettoError):
    """The parameter servers that a stage knows are not those of the lease: one of both has to look again."""


class StepRefused(StrettoError):
    """A stage does not compute the step now; another one may."""


class MessageRefused(StepRefused):
    """A stage cannot read a request, as one of another version of Stretto: what it knows of the connection's arrays is
    no longer what the writer takes it to know."""


class Asked(NamedTuple):
    """A step that a worker asks for: its claim and the books that the lease belongs to, the layers that are left, what
    crosses to them. is_fresh: its dense values are to be those that servers have when it is asked for."""

    claim: Claim
    books: str
    worker: int
    lineage: int | None
    first_layer: int
    given: Given
    is_fresh: bool = True

    @property
    def kind(self) -> StageMessage:
        """The kind of the message that asks for it."""
        return StageMessage.STEP if self.is_fresh else StageMessage.STEP_IN_PIPELINE


def step_request(asked: Asked, writer: Writer) -> list[Any]:
    """Return the parts of a request. Raises ModelRefused for a batch that cannot travel."""
    lineage = -1 if asked.lineage is None else asked.lineage
    head = np.array([*asked.claim, asked.worker, lineage, asked.first_layer], np.int64)
    given = asked.given
    # int32 travels: the batch has fewer unique rows; the reader widens it
    narrow = (replace(table, inverse=cast("Any", table.inverse.astype(np.int32))) for table in given.keys.tables)
    arrays = arrays_of(Prepared(given.batch, KeyBatch(tuple(narrow))))
    return [head, asked.books.encode(), *writer.parts(arrays | _numbered("row", given.rows, "live", given.live))]


def read_step(kind: int, parts: Sequence[Any], reader: Reader) -> Asked:
    """Return the step that is asked for; its arrays are views of the parts. Raises InputRefused, ArraysRefused."""
    if kind not in (StageMessage.STEP, StageMessage.STEP_IN_PIPELINE):
        raise InputRefused(f"a message of kind {kind}: of another version of Stretto?")
    if len(parts) < 2:
        raise InputRefused(f"a step of {len(parts)} parts: of another version of Stretto?")
    head = array_of("head", parts[0], np.int64).tolist()
    if len(head) != _HEAD:
        raise InputRefused(f"a step with a head of {len(head)} numbers, wanted {_HEAD}")
    arrays = reader.arrays(parts[2:])
    prepared = prepared_of(arrays)
    wide = (replace(table, inverse=table.inverse.astype(np.int64)) for table in prepared.keys.tables)
    given = Given(_of(arrays, "row"), KeyBatch(tuple(wide)), prepared.batch, _of(arrays, "live"))
    *claim, worker, lineage, first_layer = head
    books = bytes(parts[1]).decode(errors="replace")
    is_fresh = kind == StageMessage.STEP
    return Asked(Claim(*claim), books, worker, None if lineage < 0 else lineage, first_layer, given, is_fresh)


def answer_parts(answer: Returned, writer: Writer) -> list[Any]:
    """Return the parts of an answer."""
    told = {
        "loss": np.array([answer.loss]),
        "shared": answer.shared,
        "shared gradients": answer.shared_gradients,
        "state": answer.state_delta,
    }
    return writer.parts(told | _numbered("live", answer.live))


def read_answer(parts: Sequence[Any], reader: Reader) -> Returned:
    """Return the answer; its arrays are views of the parts. Raises InputRefused, ArraysRefused."""
    arrays = reader.arrays(parts)
    try:
        return Returned(
            float(arrays["loss"][0]),
            live=_of(arrays, "live"),
            shared=arrays["shared"],
            shared_gradients=arrays["shared gradients"],
            state_delta=arrays["state"],
        )
    except LookupError as error:
        raise InputRefused(f"an answer without {error}: of another version of Stretto?") from None


def refusal_parts(error: Exception) -> list[Any]:
    """Return the parts of a refusal."""
    return [type(error).__name__.encode(), str(error).encode()]


def read_refusal(parts: Sequence[Any]) -> StrettoError:
    """Return the error that a stage has told; `StepRefused` for one that says nothing of the batch or the lease."""
    name, text = (bytes(part).decode(errors="replace") for part in [*parts, b"", b""][:2])
    known: dict[str, type[StrettoError]] = {each.__name__: each for each in (*_TOLD, OtherBooks)}
    known |= {each.__name__: MessageRefused for each in (InputRefused, ArraysRefused)}
    return known.get(name, StepRefused)(text)


def _numbered(*named: Any) -> Arrays:
    pairs = zip(named[::2], named[1::2], strict=True)
    return {f"{name} {i}": each for name, of in pairs for i, each in enumerate(of)}


def _of(arrays: Arrays, name: str) -> tuple[Any, ...]:
    found: list[Any] = []
    while (each := arrays.get(f"{name} {len(found)}")) is not None:
        found.append(each)
    return tuple(found)

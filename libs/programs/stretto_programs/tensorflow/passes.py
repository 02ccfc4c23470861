"""A pass over a data set: home pulls raw elements, and takes what was prepared from each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..lanes.feed import Feed, Stream
from ..resume.resume import dropped
from .plans import Plan


@dataclass
class RawElements:
    """The raw elements of a pass.

    iterator: gives further elements. waiting: elements and errors that an earlier pass has pulled and not used.
    """

    iterator: Any
    waiting: list[Any] = field(default_factory=list[Any])

    def next(self) -> Sequence[Any]:
        """Return the next raw element, or raise what the program's own iterator would raise."""
        import tensorflow as tf

        if self.waiting:
            found = self.waiting.pop(0)
            if isinstance(found, BaseException):
                raise found
            return found
        try:
            return tf.nest.flatten(next(self.iterator))
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def drop(self, count: int) -> int:
        """Drop elements that the program has received before; return how many there were.

        An error counts as an element.
        """
        return dropped(self.next, count)


@dataclass
class Pass:
    """A pass over a data set, for a step."""

    plan: Plan
    feed: Feed
    stream: Stream
    raw: RawElements

    def take(self) -> dict[str, Any]:
        """Return the tensors that home's part takes of the next element, by name.

        Raises what the program's own iterator would raise.
        """
        raw, values = self.feed.take_from(self.stream)
        _untie(self.stream.ended)
        prepared = self.plan.prepared
        taken = {name: raw.element[place] for name, place in prepared.local.items()}
        return taken | dict(zip(prepared.names, values, strict=True))

    def finish(self, taken: Mapping[str, Any], arguments: Sequence[Any]) -> Any:
        """Run home's part of a step, and return the step's result.

        arguments: tensors that the step takes beside its iterator.
        """
        return self.plan.split.finish(taken, arguments)

    def end(self) -> RawElements:
        """End the pass, and return its unused raw elements: another pass may go on with them."""
        self.feed.end(self.stream.name)
        pulled: list[Any] = [each.element for each in self.stream.raw.values()]
        pulled += [] if self.stream.ended is None else [self.stream.ended]
        return RawElements(self.raw.iterator, pulled + self.raw.waiting)


def _untie(error: BaseException | None) -> None:
    """Free an error, which waits for its step, of its tracebacks: their frames refer to the program's iterator."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__

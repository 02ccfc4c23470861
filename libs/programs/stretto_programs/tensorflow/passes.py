"""A pass over a data set: home pulls its raw elements, and takes what was prepared of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..lanes.feed import Feed, Stream
from ..resume.resume import dropped
from .plans import Plan


@dataclass
class RawElements:
    """Raw elements of one pass. waiting: pulled before, for another step, and not used; errors at their place."""

    iterator: Any
    waiting: list[Any] = field(default_factory=list[Any])

    def next(self) -> Sequence[Any]:
        """Return the next one; raises what the program's own iterator would."""
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
        """Drop elements that the program has had; return how many there were. An error is one at its place."""
        return dropped(self.next, count)


@dataclass
class Pass:
    """One pass over a data set, for one step."""

    plan: Plan
    feed: Feed
    stream: Stream
    raw: RawElements

    def take(self) -> dict[str, Any]:
        """Return what home takes of the next element, by name. Raises what the program's own iterator would."""
        raw, values = self.feed.take(self.stream)
        _untie(self.stream.ended)
        prepared = self.plan.prepared
        taken = {name: raw.element[place] for name, place in prepared.local.items()}
        return taken | dict(zip(prepared.names, values, strict=True))

    def finish(self, taken: Mapping[str, Any], arguments: Sequence[Any]) -> Any:
        """Do home's part of a step, and return its result. arguments: tensors that it takes beside its iterator."""
        return self.plan.split.finish(taken, arguments)

    def end(self) -> RawElements:
        """End the pass, and return its raw elements: another may go on with them."""
        self.feed.end(self.stream.name)
        pulled: list[Any] = [each.element for each in self.stream.raw.values()]
        pulled += [] if self.stream.ended is None else [self.stream.ended]
        return RawElements(self.raw.iterator, pulled + self.raw.waiting)


def _untie(error: BaseException | None) -> None:
    """Free an error that waits for its step of the frames it was met in: they refer to the program's iterator."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__

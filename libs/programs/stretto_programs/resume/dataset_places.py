"""Places in the data sets of a program: where the next iterator over each begins, and what an iterator goes on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..errors import ProgramRefused, in_words
from ..graphs.shuffles import Drawn, shuffles_of
from .identities import draws_more, identity_of
from .places import Place
from .resume import Identity, Resume

_IDENTITY = "_stretto_identity"


class DatasetPlaces:
    """Places in the data sets of one program.

    drawn: orders of its shuffles. ours: marks what runs within as code of this package. say_once: writes a line to
    people.
    """

    def __init__(
        self,
        resume: Resume,
        drawn: Drawn,
        ours: Callable[[], AbstractContextManager[None]],
        say_once: Callable[[str], None],
    ) -> None:
        self.is_aside = False
        """Set while Keras evaluates, predicts or adapts: no place is claimed, since nothing is trained."""
        self._resume, self._drawn, self._ours, self._say_once = resume, drawn, ours, say_once

    def identity(self, dataset: Any) -> Identity:
        """Return the identity of a data set."""
        found: Identity | None = vars(dataset).get(_IDENTITY)
        if found is None:
            with self._ours():
                vars(dataset)[_IDENTITY] = found = identity_of(dataset)
        return found

    def of(self, dataset: Any, orders: Sequence[int], consumed: int, *, epoch_steps: int = 0) -> Place:
        """Return a place in a data set."""
        found = self.identity(dataset)
        return Place(found.source, found.digest, tuple(orders), consumed, epoch_steps, found.length, found.unknown)

    def of_next(self, dataset: Any) -> Place:
        """Return the place of the next iterator over a data set."""
        return self.of(dataset, [self._drawn.of(each) + 1 for each in shuffles_of(dataset)], 0)

    def claimed(self, dataset: Any) -> Place | None:
        """Return the place at which the next iterator over a data set begins, None: at its beginning."""
        if self.is_aside or not self._resume.is_waiting:
            return None
        try:
            return self._resume.claim(self.identity(dataset))
        except Exception as error:  # a data set that nobody can read begins where it does alone
            self._say_once(f"resume: a data set begins anew: {in_words(error)}")
            return None

    def resumed(self, dataset: Any) -> Place | None:
        """Return the place at which the next iterator over a data set begins, after drawing the orders before it.

        None: at its beginning. `Datasets.drawing` is held.
        """
        place = self.claimed(dataset)
        return place if place is not None and self.advance(dataset, place) else None

    def advance(self, dataset: Any, place: Place) -> bool:
        """Draw the orders before a place; return whether the next iterator draws that of the place.

        The caller holds `Datasets.drawing`."""
        try:
            shuffles = [*shuffles_of(dataset)]
            missing = [wanted - 1 - self._drawn.of(each) for each, wanted in zip(shuffles, place.orders, strict=True)]
            if min(missing, default=0) < 0:
                raise ProgramRefused("the program has drawn more orders of its shuffle than before the checkpoint")
            if any(missing) and not draws_more(dataset):
                raise ProgramRefused("nobody can tell how many orders a shuffle under a repeat or a cache has drawn")
            for each, count in zip(shuffles, missing, strict=True):
                for _ in range(count):
                    with self._ours():
                        iter(each)
                    self._drawn.made_one(each)
        except Exception as error:  # the data begin where they do alone
            self._resume.refuse(place, in_words(error))
            return False
        return True

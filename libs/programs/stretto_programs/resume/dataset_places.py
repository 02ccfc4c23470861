"""The place at which each data set of a program is, and at which its next iterator begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..errors import ProgramRefused, in_words
from ..graphs.shuffles import Drawn, shuffles_of
from .identities import draws_more, identity_of
from .places import DatasetPlace
from .resume import Identity, Resume

_IDENTITY = "_stretto_identity"


class DatasetPlaces:
    """The places of a program in its data sets.

    drawn: orders drawn from shuffles so far. ours: marks code within as this package's. say_once: writes a line to
    people, unless the same was written before.
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

    def of(self, dataset: Any, orders: Sequence[int], consumed: int, *, epoch_steps: int = 0) -> DatasetPlace:
        """Return a place of an iterator, or of a pass of Keras `fit`, in a data set."""
        found = self.identity(dataset)
        return DatasetPlace(
            found.source, found.digest, tuple(orders), consumed, epoch_steps, found.length, found.unknown
        )

    def of_next(self, dataset: Any) -> DatasetPlace:
        """Return the place at which the next iterator over a data set would begin."""
        return self.of(dataset, [self._drawn.of(each) + 1 for each in shuffles_of(dataset)], 0)

    def claimed(self, dataset: Any) -> DatasetPlace | None:
        """Return the restored place at which the next iterator over a data set begins; None: at the beginning."""
        if self.is_aside or not self._resume.is_waiting:
            return None
        try:
            return self._resume.claim(self.identity(dataset))
        except Exception as error:  # a data set that cannot be read begins at its beginning, as alone
            self._say_once(f"resume: a data set begins anew: {in_words(error)}")
            return None

    def resumed(self, dataset: Any) -> DatasetPlace | None:
        """Return the restored place of the next iterator over a data set; None: the beginning.

        The orders before the place are drawn. The caller holds `Datasets.drawing`.
        """
        place = self.claimed(dataset)
        return place if place is not None and self.advance(dataset, place) else None

    def advance(self, dataset: Any, place: DatasetPlace) -> bool:
        """Draw the orders before a place; return whether the next iterator then draws the order of that place.

        The caller holds `Datasets.drawing`.
        """
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
        except Exception as error:  # the data begin at their beginning, as alone
            self._resume.refuse(place, in_words(error))
            return False
        return True

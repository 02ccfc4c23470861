"""Data sets prepared for split steps, and the numbers under which lanes know their preparations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any
from weakref import WeakValueDictionary

from ..splitting.graph_preparation import GraphPreparation
from ..splitting.opening import Opening
from ..splitting.prepared import Prepared, preparation_numbers, prepared_for
from ..splitting.split import Split

PREPARED_MAX = 16
"""Bound of preparations that are kept though no pass needs them (taste)."""


@dataclass(frozen=True)
class Plan:
    """A data set that is prepared for a split step."""

    split: Split
    opening: Opening
    prepared: Prepared


class Splits:
    """The splits of one step. One holds for all data sets of one kind of elements, as a traced function does.

    They keep how the last data sets were prepared for them.
    """

    def __init__(self) -> None:
        self._prepared: dict[tuple[int, object], Prepared] = {}
        """by split and by what maps have in common; the last one is the one used last"""
        self._splits: list[tuple[Any, Split]] = []

    def of(self, element_spec: Any) -> Split | None:
        """Return the split for elements of a kind, None if there is none yet."""
        return next((split for spec, split in self._splits if spec == element_spec), None)

    def keep(self, element_spec: Any, split: Split) -> None:
        """Keep a split for later data sets."""
        if self.of(element_spec) is None:
            self._splits.append((element_spec, split))

    def prepared(self, split: Split, opening: Opening) -> Prepared:
        """Return how a data set is prepared for one of them. Raises ProgramRefused: that cannot be."""
        key = id(split), opening.stage_key
        found = self._prepared.pop(key, None) or prepared_for(split, opening)
        self._prepared[key] = found
        if len(self._prepared) > PREPARED_MAX:
            del self._prepared[next(iter(self._prepared))]
        return found


@dataclass(frozen=True)
class LivePreparation(GraphPreparation):
    """A preparation that lanes know as long as anything at home refers to it. live: the numbers of all of these."""

    live: Callable[[], list[int]]

    def head(self) -> dict[str, Any]:
        """Return the part that is JSON."""
        return super().head() | {"live": self.live()}


class Numbered:
    """Gives preparations the numbers under which lanes know them.

    A preparation that no pass needs, and that was not used lately, is forgotten; if it is used again, it gets another
    number, and lanes are taught again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, tuple[GraphPreparation, LivePreparation]] = {}
        """by the identity of the first; the last one is the one used last"""
        self._live: WeakValueDictionary[int, LivePreparation] = WeakValueDictionary()

    def of(self, made: GraphPreparation) -> LivePreparation:
        """Return a preparation under a number of now."""
        with self._lock:
            _, found = self._last.pop(id(made), (made, None))
            if found is None:
                values: dict[str, Any] = {each.name: getattr(made, each.name) for each in fields(made)}
                values["number"] = next(preparation_numbers)
                found = LivePreparation(**values, live=self.live)
                self._live[found.number] = found
            self._last[id(made)] = made, found
            if len(self._last) > PREPARED_MAX:
                del self._last[next(iter(self._last))]
            return found

    def live(self) -> list[int]:
        """Return the numbers that lanes may still be asked for."""
        with self._lock:
            return [*self._live.keys()]

"""Plans: data sets prepared for split steps, and the numbers by which lanes know their preparations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any
from weakref import WeakValueDictionary

from ..splitting.dataset_preparation import DatasetPreparation, preparation_for, preparation_numbers
from ..splitting.graph_preparation import GraphPreparation
from ..splitting.opening import Opening
from ..splitting.split import Split

PREPARED_MAX = 16
"""Most preparations that are kept although no pass needs them (taste)."""


@dataclass(frozen=True)
class Plan:
    """The plan for a data set: the split of the step, the opened data set, and its preparation."""

    split: Split
    opening: Opening
    prepared: DatasetPreparation


class Splits:
    """The splits of a step: one for each kind of element, like the graphs of a traced function.

    The preparations of data sets used last are kept, too.
    """

    def __init__(self) -> None:
        self._prepared: dict[tuple[int, object], DatasetPreparation] = {}
        """Preparations by split and maps, least recently used first."""
        self._splits: list[tuple[Any, Split]] = []

    def of(self, element_spec: Any) -> Split | None:
        """Return the split for a kind of element, None if there is none yet."""
        return next((split for spec, split in self._splits if spec == element_spec), None)

    def keep(self, element_spec: Any, split: Split) -> None:
        """Keep a split for later data sets with this kind of element."""
        if self.of(element_spec) is None:
            self._splits.append((element_spec, split))

    def prepared(self, split: Split, opening: Opening) -> DatasetPreparation:
        """Return the preparation of a data set for a split. Raises ProgramRefused: it cannot be prepared."""
        key = id(split), opening.stage_key
        found = self._prepared.pop(key, None) or preparation_for(split, opening)
        self._prepared[key] = found
        if len(self._prepared) > PREPARED_MAX:
            del self._prepared[next(iter(self._prepared))]
        return found


@dataclass(frozen=True)
class LivePreparation(GraphPreparation):
    """A preparation that lanes keep while home refers to it. live: returns the numbers of all such preparations."""

    live: Callable[[], list[int]]

    def head(self) -> dict[str, Any]:
        """Return the description of the preparation, for JSON, with the numbers of all that lanes must keep."""
        return super().head() | {"live": self.live()}


class Numbered:
    """The numbers by which lanes know preparations.

    A preparation that no pass needs, and that was not used lately, loses its number. If it is used again, it gets
    another, and lanes are taught again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, tuple[GraphPreparation, LivePreparation]] = {}
        """Numbered preparations by the identity of the original, least recently used first."""
        self._live: WeakValueDictionary[int, LivePreparation] = WeakValueDictionary()

    def of(self, made: GraphPreparation) -> LivePreparation:
        """Return a preparation with a number that lanes may be asked for."""
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

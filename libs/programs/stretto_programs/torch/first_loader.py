"""The first `DataLoader` of PyTorch that a program iterates, as `explain-graph` measures it: as `stretto run` would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..import_hooks import AfterImport
from ..lanes.data_workers import DataWorkers
from .loader import LoaderMeasures, TorchLoader


@dataclass(frozen=True, slots=True)
class LoaderStep:
    """A loader's first batches. refused: why it stays as it is, "" if `stretto run` would move it."""

    measures: LoaderMeasures
    refused: str

    def document(self) -> dict[str, Any]:
        """Return what was found, as a JSON document. Times are milliseconds of one step."""
        items_s, between_s = (min(each, default=0.0) for each in (self.measures.took_s, self.measures.between_s))
        all_s = items_s + between_s
        moving = f"{1e3 * items_s:.2f} of {1e3 * all_s:.2f} ms of a step move to data workers"
        fastest = f"at most {all_s / max(between_s, 1e-9):.2f} times as fast"
        return {
            "kind": "PyTorch DataLoader",
            "step": self.measures.name,
            "verdict": f"nothing moves: {self.refused}" if self.refused else f"{moving}: {fastest}",
            "moves": not self.refused,
            "batches": len(self.measures.took_s),
            "items_ms": round(1e3 * items_s, 4),
            "between_ms": round(1e3 * between_s, 4),
            "num_workers": self.measures.num_workers,
        }


class _FirstLoader(TorchLoader):
    """The hook of `DataLoader`, which moves nothing. take: called once it is known whether the loader would move."""

    take: Callable[[LoaderStep], None]

    def refuse(self, source: LoaderMeasures, reason: str) -> None:
        self.take(LoaderStep(source, reason))

    def measured(self, source: LoaderMeasures) -> None:
        self.take(LoaderStep(source, ""))


def install(take: Callable[[LoaderStep], None]) -> Callable[[], None]:
    """Hook `DataLoader` once the program imports it; return a function that hooks no later import."""
    loader = _FirstLoader(DataWorkers(1, [], {}, lambda text: None))
    loader.take = take

    def missing(error: Exception) -> None:
        raise error

    finder = AfterImport([loader.hooks()], missing)
    return lambda: sys.meta_path.remove(finder)

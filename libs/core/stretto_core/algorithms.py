"""Algorithms by name: entry points, Stretto's own included, loaded only when chosen.

A package adds an algorithm by an entry point in the group of its kind, ``stretto.<kind>``, with ``_`` for every
character that is no letter. The kind's protocol states the arguments and the result of the callable. Services,
simulator and ``stretto whatif`` choose from the same names. ``examples/equal_shares`` is a complete example.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, cast

from stretto_core.machine import CoreError

REINSTALL = "run `make setup` after a pull (elsewhere: reinstall the stretto packages)"
"""Remedy: names are registered when a package is installed, not when its code changes."""


class AlgorithmError(CoreError):
    """No algorithm of that name is available. The text lists the installed ones, or names the missing package."""


@lru_cache(maxsize=1)
def _installed(*folders: str) -> EntryPoints:
    """Return the entry points of all that is installed in some folders: 70 ms, so once in a process."""
    return cast(EntryPoints, entry_points())  # of Python 3.11 another type, which selects likewise


@dataclass(frozen=True, slots=True)
class DecisionKind:
    """A decision with several algorithms. ``default`` names the one that is used unless another is chosen."""

    name: str
    default: str

    @property
    def group(self) -> str:
        """The group of the kind's entry points."""
        return "stretto." + re.sub(r"\W", "_", self.name)

    def names(self) -> list[str]:
        """Return the names of the installed algorithms, the default first."""
        names = _installed(*sys.path).select(group=self.group).names
        return sorted(names, key=lambda name: (name != self.default, name))

    def named(self, name: str) -> Any:
        """Return the callable of an installed algorithm.

        Raises:
            AlgorithmError: it is not installed, or one of the packages that it needs is not.
        """
        found = _installed(*sys.path).select(group=self.group, name=name)
        if not found:
            installed = ", ".join(self.names()) or "none"
            remedy = f"; {REINSTALL}" if name == self.default else ""  # ours, in every whole installation
            raise AlgorithmError(f"algorithm is {name!r}; installed for {self.name} are {installed}{remedy}")
        point = next(iter(found))
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            package = point.dist.name if point.dist else point.module
            raise AlgorithmError(
                f"algorithm {name!r} of {package} cannot be loaded: {error}; install what it needs, or {REINSTALL}"
            ) from error


FIT = DecisionKind("fit", "robust")
PARETO = DecisionKind("pareto", "exact")
SELECT = DecisionKind("select", "exact-or-hull")
SHARE = DecisionKind("share", "srtf")
ALLOCATE = DecisionKind("allocate", "certified")
PLACE = DecisionKind("place", "exact")
MEMORY = DecisionKind("memory", "growth")
OOM = DecisionKind("oom", "growth")
DETECT = DecisionKind("detect", "cusum")
SIMULATE_ALLOCATION = DecisionKind("simulate allocation", "certified")
SIMULATE_DATA_WORKERS = DecisionKind("simulate data-workers", "srtf")
SIMULATE_CLUSTER = DecisionKind("simulate cluster", "stretto")

KINDS = (
    ALLOCATE, PLACE, SELECT, SHARE, PARETO, FIT, MEMORY, OOM, DETECT,
    SIMULATE_ALLOCATION, SIMULATE_DATA_WORKERS, SIMULATE_CLUSTER,
)  # fmt: skip

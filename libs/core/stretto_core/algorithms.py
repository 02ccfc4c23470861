"""Algorithms by name: entry points, our own among them, loaded only when chosen.

A package adds one by an entry point in the group of its kind, ``stretto.<kind>`` (what is no letter as ``_``); what the
callable gets and returns, the kind's protocol says. Services, simulator and ``stretto whatif`` choose from the same
names. ``examples/equal_shares`` is a whole one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from stretto_core.machine import CoreError

REINSTALL = "run `make setup` after a pull (elsewhere: reinstall the stretto packages)"
"""names are registered when a package is installed, not when its code changes"""


class AlgorithmError(CoreError):
    """No algorithm of that name can be had; says which there are, or what the chosen one lacks."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A decision that can be made in several ways. ``default`` is the name of the one to use unless told otherwise."""

    name: str
    default: str

    @property
    def group(self) -> str:
        """Of the entry points."""
        return "stretto." + re.sub(r"\W", "_", self.name)

    def names(self) -> list[str]:
        """What is installed, the default first."""
        return sorted(entry_points(group=self.group).names, key=lambda name: (name != self.default, name))

    def named(self, name: str) -> Any:
        """The callable of that name.

        Raises:
            AlgorithmError: it is not installed, or one of the packages that it needs is not.
        """
        found = entry_points(group=self.group, name=name)
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


FIT = Kind("fit", "robust")
PARETO = Kind("pareto", "exact")
SELECT = Kind("select", "hull")
ALLOCATE = Kind("allocate", "certified")
PLACE = Kind("place", "exact")
MEMORY = Kind("memory", "growth")
OOM = Kind("oom", "growth")
DETECT = Kind("detect", "cusum")
SIMULATE_ALLOCATION = Kind("simulate allocation", "certified")
SIMULATE_DATA_WORKERS = Kind("simulate data-workers", "srtf")
SIMULATE_CLUSTER = Kind("simulate cluster", "stretto")

KINDS = (
    ALLOCATE, PLACE, SELECT, PARETO, FIT, MEMORY, OOM, DETECT,
    SIMULATE_ALLOCATION, SIMULATE_DATA_WORKERS, SIMULATE_CLUSTER,
)  # fmt: skip

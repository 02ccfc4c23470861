"""Selection algorithms by name: entry points of the group ``stretto.arbiters``, loaded only when chosen."""

from __future__ import annotations

from importlib.metadata import entry_points

from stretto_core.selection import SelectionAlgorithm, weighted_greedy
from stretto_runtime import SettingsFault

GROUP = "stretto.arbiters"


def algorithm_named(name: str) -> SelectionAlgorithm:
    """The algorithm of that name. Raises SettingsFault for an unknown one, or one whose own needs are missing."""
    if name == "weighted-greedy":
        return weighted_greedy
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({"weighted-greedy", *found}))
        raise SettingsFault(f"STRETTO_ARBITER_ALGORITHM={name!r} is not installed; known are {known}")
    try:
        return found[name].load()
    except ImportError as error:
        raise SettingsFault(f"STRETTO_ARBITER_ALGORITHM={name!r} cannot be loaded: {error}") from error

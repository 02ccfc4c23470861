"""Candidate algorithms by name: entry points of the group ``stretto.planners``, loaded only when chosen."""

from __future__ import annotations

from importlib.metadata import entry_points

from stretto_core.candidates import CandidateAlgorithm, exact_front
from stretto_runtime import SettingsFault

GROUP = "stretto.planners"


def algorithm_named(name: str) -> CandidateAlgorithm:
    """The algorithm of that name. Raises SettingsFault for an unknown one, or one whose own needs are missing."""
    if name == "exact":
        return exact_front
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({"exact", *found}))
        raise SettingsFault(f"STRETTO_PLANNER_ALGORITHM={name!r} is not installed; known are {known}")
    try:
        return found[name].load()
    except ImportError as error:
        raise SettingsFault(
            f"STRETTO_PLANNER_ALGORITHM={name!r} cannot be loaded ({error}); install stretto-planner[{name}]"
        ) from error

"""Quotas of teams: the resources and jobs that a team may have, and its weight against other teams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from stretto_messages.base import GIB
from stretto_messages.values import ExtendedName, Resources, extended_of, require

OTHERS = "*"
"""Stands for every team that has no entry of its own."""
NO_LIMIT = Resources(1e9, 2**60)
"""More cores and memory than any cluster has."""
NO_COUNT_LIMIT = 2**60
"""More units of an extended resource than any cluster has."""


@dataclass(frozen=True, slots=True)
class TeamQuota:
    """Quota of one team; None: no limit.

    ``cores``, ``memory_gib`` and ``extended``, counts of extended resources by name, bound what all plans of the team's
    jobs hold together; a name that is absent has no limit. A team with ``borrow`` may hold
    more for as long as no other team asks for its own quota. ``jobs`` bounds the live jobs, ``priority_max`` the
    priority of each. Fair shares of the cluster are in proportion to ``weight``.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    cores: float | None = None
    memory_gib: float | None = None
    extended: dict[ExtendedName, int] = field(default_factory=dict[str, int])
    jobs: int | None = None
    priority_max: float | None = None
    weight: float = 1.0
    borrow: bool = True

    def __post_init__(self) -> None:
        """Raise InvalidValue for a number outside its domain."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and each.name not in ("borrow", "extended"):
                require(each.name, value, 1e-3 if each.name == "weight" else 0.0)
        for name, count in self.extended.items():
            require(f"extended.{name}", count, 0)

    @property
    def limited(self) -> bool:
        """True if the quota limits any resource."""
        return self.cores is not None or self.memory_gib is not None or bool(self.extended)

    def limit(self, capacity: Resources) -> Resources:
        """Return the resources that the team may hold in a cluster of this capacity without borrowing."""
        return Resources(
            NO_LIMIT.cpu_cores if self.cores is None else self.cores,
            NO_LIMIT.memory_bytes if self.memory_gib is None else int(self.memory_gib * GIB),
            extended_of({name: self.extended.get(name, NO_COUNT_LIMIT) for name, _ in capacity.extended}),
        )


Quotas = Mapping[str, TeamQuota]
"""Quotas by team; the entry ``OTHERS`` is every other team's."""
UNLIMITED = TeamQuota()


def quota_of(quotas: Quotas, team: str) -> TeamQuota:
    """Return the quota of a team."""
    return quotas.get(team) or quotas.get(OTHERS) or UNLIMITED

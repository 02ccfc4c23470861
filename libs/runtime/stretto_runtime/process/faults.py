"""Errors between a machine and the bus."""

from __future__ import annotations

from stretto_bus.faults import Fault


class RuntimeFault(Fault):
    """The runtime cannot go on, or a service broke its contract."""


class SettingsFault(RuntimeFault):
    """A variable of the environment is unknown, or its value is refused."""


class VersionRefusal(RuntimeFault):
    """A version cannot continue what another version of its machine saved. Nothing was changed or published."""


class Contradiction(VersionRefusal):
    """A version decides an input of ``key`` otherwise than what is published."""

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text)
        self.key = key


class PartitionLost(RuntimeFault):
    """A replica does not own the partition of a job, or no longer does."""

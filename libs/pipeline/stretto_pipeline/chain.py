"""Groups of data workers, each of one type of device, of which each feeds the next and the last feeds the trainer.

    raw samples -> home -> lane of the last group -> lanes of the group before -> ... -> lanes of the first group

A lane behind the first group has a feed of its own over the group before it. It must be asked for as many batches as
that feed may hold, or the lanes before it starve:

    credits(0) = CREDITS
    credits(k) = SPARE + credits(k - 1) * count(k - 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from .errors import PipelineError
from .feeding import CREDITS, SPARE

LANES_MAX = 64
"""Data workers of one program (taste)."""
IN_HAND_MAX = 512
"""Batches that all lanes of a group are asked for at once, credits(k) * count(k): each takes a connection and a thread
in the process that asks (taste)."""
OPTION, DEVICE_OPTION = "--data-workers", "--device-type"


class ChainRefused(PipelineError):
    """A list of data workers, or of types of devices, that cannot be used."""


@dataclass(frozen=True, slots=True)
class Group:
    """So many data workers of one type of device. device: "" where only one group is."""

    device: str
    count: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Groups in the order in which samples pass them. devices: declared types of device, by type of operation."""

    groups: tuple[Group, ...]
    devices: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def last(self) -> Group:
        """The group that feeds the trainer."""
        return self.groups[-1]

    @property
    def has_stages(self) -> bool:
        """Return whether a group feeds another one."""
        return len(self.groups) > 1

    @property
    def credits(self) -> tuple[int, ...]:
        """Batches that a lane of each group is asked for at once."""
        found = [CREDITS]
        for group in self.groups[:-1]:
            found.append(window_of(group.count, found[-1]))
        return tuple(found)

    @property
    def in_words(self) -> str:
        """The data workers, for people."""
        if not self.has_stages:
            return f"{self.last.count} data workers"
        counts = [f"{each.count} {each.device}" for each in self.groups]
        return f"{', '.join(counts[:-1])} and {counts[-1]} data workers"


def window_of(lane_count: int, credits: int) -> int:
    """Return the batches that a feed over so many lanes may hold."""
    return SPARE + credits * lane_count


def chain_of(text: str, devices: Iterable[str] = ()) -> Chain:
    """Read `--data-workers` ("3", or "cpu=2,gpu=1"), and texts OPERATION=TYPE of `--device-type`.

    Raises ChainRefused.
    """
    parts = text.split(",")
    groups = tuple(_group(each, is_only=len(parts) == 1) for each in parts)
    if not 1 <= sum(each.count for each in groups) <= LANES_MAX or min(each.count for each in groups) < 1:
        raise ChainRefused(f"{OPTION} {text}: give 1 to {LANES_MAX} in all, and at least 1 of each type")
    for one, other in pairwise(groups):
        if one.device == other.device:
            raise ChainRefused(f"{OPTION} {text}: {one.device} feeds itself: give {one.device} once, with the sum")
    chain = Chain(groups, devices_of(devices))
    for group, credits in zip(groups, chain.credits, strict=True):
        if group.count * credits > IN_HAND_MAX:
            raise ChainRefused(
                f"{OPTION} {text}: the {group.count} {group.device} data workers would be asked for "
                f"{group.count * credits} batches at once, {credits} each: give fewer of them, or of the types before "
                f"them, such that these are at most {IN_HAND_MAX}"
            )
    known = {each.device for each in groups}
    for operation, device in chain.devices.items():
        if device not in known:
            raise ChainRefused(
                f"{DEVICE_OPTION} {operation}={device}: {OPTION} {text} has no {device}: give a number of them, "
                f"such as {OPTION} cpu=2,{device}=1"
            )
    return chain


def _group(text: str, *, is_only: bool) -> Group:
    """Read one group: a number alone where no other group is, else TYPE=NUMBER."""
    device, equals, count = text.rpartition("=")
    name = device.strip().lower()
    if not _is_number(count.strip()) or bool(equals) != bool(name) or (not name and not is_only):
        raise ChainRefused(f"{OPTION}: {text!r} is refused: give a number, or types with numbers, such as cpu=2,gpu=1")
    if name and not name.isidentifier():
        raise ChainRefused(f"{OPTION} {text}: {name!r} is no type of device: give letters and digits, such as gpu")
    return Group(name, int(count))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def devices_of(given: Iterable[str]) -> dict[str, str]:
    """Return types of devices by type of operation, from texts OPERATION=TYPE. Raises ChainRefused."""
    found: dict[str, str] = {}
    for each in given:
        operation, _, device = each.partition("=")
        if not (operation and device):
            raise ChainRefused(f"{DEVICE_OPTION} {each}: give OPERATION=TYPE, such as UniqueV2=gpu")
        found[operation] = device.lower()
    return found

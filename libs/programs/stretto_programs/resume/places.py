"""Places of a program in its data, as the file beside a checkpoint keeps them.

The file has the places of the last checkpoints that had its name, each with the digest of that checkpoint. Before a
checkpoint is written, its places stand there without one; so whenever the program dies, the file has the right ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from stretto_pipeline.errors import PipelineError

VERSION = 1
SUFFIX = ".stretto.json"
KEPT = 2
"""Checkpoints of one name whose places are kept: Keras' BackupAndRestore goes back to the last but one."""


Key = tuple[str, int]
"""Digest of what decides which elements come when, and how many there are at the beginning of a pipeline."""


class PlacesRefused(PipelineError):
    """A file beside a checkpoint that gives no places for it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in one data set: that of an iterator, or of the next one where no iterator is under way.

    source: its operations, for people. identity: digest of what decides which elements come when. orders: number of
    the order that each of its shuffles draws there, which is the epoch of the source. consumed: elements that the
    program has had. epoch_steps: those of them that belong to the epoch of Keras `fit` under way. length: elements
    at the beginning of its pipeline, negative if not known. unknown: why nobody can tell the place, "" if it is known.
    """

    source: str
    identity: str
    orders: tuple[int, ...] = ()
    consumed: int = 0
    epoch_steps: int = 0
    length: int = -1
    unknown: str = ""

    @property
    def key(self) -> Key:
        """Return what another run finds the data set by."""
        return self.identity, self.length


@dataclass(frozen=True, slots=True)
class Kept:
    """The places of one checkpoint. digest: of its content, "" while it is being written. run: the process.

    seeds: states of random layers, by their number.
    """

    run: str
    digest: str
    places: tuple[Place, ...]
    seeds: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])


def begun(before: Sequence[Kept], now: Kept) -> tuple[Kept, ...]:
    """Return what a file has while a checkpoint is written. before: what it had; now: without a digest."""
    written = [each for each in before if each.digest]
    return (*written[-KEPT:], now)


def ended(kept: Sequence[Kept], now: Kept) -> tuple[Kept, ...]:
    """Return what a file has once its last checkpoint is written. now: with its digest."""
    others = [each for each in kept[:-1] if each.digest != now.digest]
    return (*others[-KEPT + 1 :], now)


def doubted(places: Sequence[Place], later: Sequence[Place]) -> tuple[Place, ...]:
    """Return places of the beginning of a save. later: those of its end, which tell what nobody can tell any more."""
    reasons = {each.identity: each.unknown for each in later if each.unknown}
    return tuple(replace(each, unknown=each.unknown or reasons.get(each.identity, "")) for each in places)


def of_checkpoint(kept: Sequence[Kept], digest: str) -> Kept | None:
    """Return the places of a checkpoint with this content; None: the file belongs to another one.

    A checkpoint that the file does not know is the one that was being written, and is complete, since it was read.
    """
    found = [each for each in kept if each.digest == digest]
    return (found or [each for each in kept if not each.digest] or [None])[-1]


def text_of(kept: Sequence[Kept], program: str) -> str:
    """Return the text of a file. program: the script's name, for people."""
    document = {"version": VERSION, "program": program, "checkpoints": [asdict(each) for each in kept]}
    return json.dumps(document, indent=1) + "\n"


def kept_of(content: str | bytes) -> tuple[Kept, ...]:
    """Read the content of a file. Raises PlacesRefused."""
    try:
        document = json.loads(content)
        if document["version"] != VERSION:
            raise PlacesRefused(f"it has version {document['version']}, and version {VERSION} is known")
        if not isinstance(document["checkpoints"], list):
            raise TypeError("it has no list of checkpoints")
        return tuple(_kept(each) for each in document["checkpoints"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PlacesRefused(f"it cannot be read ({type(error).__name__}: {error})") from error


def _kept(given: Mapping[str, Any]) -> Kept:
    seeds = {int(number): [int(each) for each in state] for number, state in given["seeds"].items()}
    return Kept(str(given["run"]), str(given["digest"]), tuple(_place(each) for each in given["places"]), seeds)


def _place(given: Mapping[str, Any]) -> Place:
    place = Place(
        source=str(given["source"]),
        identity=str(given["identity"]),
        orders=tuple(int(each) for each in cast("Sequence[Any]", given["orders"])),
        consumed=int(given["consumed"]),
        epoch_steps=int(given["epoch_steps"]),
        length=int(given["length"]),
        unknown=str(given["unknown"]),
    )
    if min(place.consumed, place.epoch_steps, *place.orders) < 0:
        raise ValueError("a count is negative")
    return place

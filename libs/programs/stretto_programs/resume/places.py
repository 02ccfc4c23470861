"""Places of a program in its data, as the file beside a checkpoint holds them.

The file holds the places of the last checkpoints of its name, each with the digest of its checkpoint. The places of a
new checkpoint are added before the checkpoint is written, then without digest; so the file is right at whatever moment
the program dies.
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
"""Complete checkpoints of a name whose places are kept: Keras' BackupAndRestore goes back to the last but one."""


Key = tuple[str, int]
"""Key of a data set for another run: digest of its identity, and number of elements at the beginning of its pipeline.
"""


class PlacesRefused(PipelineError):
    """A file beside a checkpoint cannot be used."""


@dataclass(frozen=True, slots=True)
class DatasetPlace:
    """A place in a data set: of an iterator under way, or of the next iterator.

    source: operations of the data set, for people. identity: digest of its identity. orders: number of the order that
    each of its shuffles draws at this place; this is the epoch of the source. consumed: elements that the program has
    received. epoch_steps: how many of these belong to the current epoch of Keras `fit`. length: elements at the
    beginning of the pipeline, negative if not known. unknown: why the place cannot be told, "" if it is known.
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
        """Key by which another run finds the data set."""
        return self.identity, self.length


@dataclass(frozen=True, slots=True)
class Kept:
    """The places of a checkpoint.

    run: the process that wrote it. digest: of the checkpoint's content, "" while it is being written. seeds: states of
    random layers, by their number.
    """

    run: str
    digest: str
    places: tuple[DatasetPlace, ...]
    seeds: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])


def begun(before: Sequence[Kept], now: Kept) -> tuple[Kept, ...]:
    """Return the content of a file while a checkpoint is written.

    before: content so far. now: the checkpoint, without digest.
    """
    written = [each for each in before if each.digest]
    return (*written[-KEPT:], now)


def ended(kept: Sequence[Kept], now: Kept) -> tuple[Kept, ...]:
    """Return the content of a file once a checkpoint is complete. now: the checkpoint, with its digest."""
    others = [each for each in kept[:-1] if each.digest != now.digest]
    return (*others[-KEPT + 1 :], now)


def doubted(places: Sequence[DatasetPlace], later: Sequence[DatasetPlace]) -> tuple[DatasetPlace, ...]:
    """Return the places at the beginning of a save, without places that have become unknown by its end (`later`)."""
    reasons = {each.identity: each.unknown for each in later if each.unknown}
    return tuple(replace(each, unknown=each.unknown or reasons.get(each.identity, "")) for each in places)


def of_checkpoint(kept: Sequence[Kept], digest: str) -> Kept | None:
    """Return the places of a checkpoint, by the digest of its content; None: the file belongs to another checkpoint.

    A checkpoint whose digest the file lacks is the checkpoint that was being written; it could be read, so it is
    complete.
    """
    found = [each for each in kept if each.digest == digest]
    return (found or [each for each in kept if not each.digest] or [None])[-1]


def text_of(kept: Sequence[Kept], program: str) -> str:
    """Return the text of a file. program: name of the script, for people."""
    document = {"version": VERSION, "program": program, "checkpoints": [asdict(each) for each in kept]}
    return json.dumps(document, indent=1) + "\n"


def kept_of(content: str | bytes) -> tuple[Kept, ...]:
    """Return the checkpoints of a file's content. Raises PlacesRefused."""
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


def _place(given: Mapping[str, Any]) -> DatasetPlace:
    place = DatasetPlace(
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

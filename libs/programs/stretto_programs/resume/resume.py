"""`stretto run --resume`: a file of places beside each checkpoint; after a restore, the program's data go on there.

save:     places of all sources -> <checkpoint>.stretto.json

restore:  <checkpoint>.stretto.json -> waiting places -> each claimed by the next iterator of its data set

A restarted program restores its variables itself, but its data begin at the beginning. Here they are advanced: the
first step takes the element after the last one that was trained before the checkpoint. If anything prevents that, a
line says so and the program goes on as without `--resume`, since a first run has no checkpoint either.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import in_words
from .places import (
    SUFFIX,
    DatasetPlace,
    Kept,
    Key,
    PlacesRefused,
    begun,
    doubted,
    ended,
    kept_of,
    of_checkpoint,
    text_of,
)
from .seeds import Seeds

ANEW = "the data begin anew"
LOOKED_AT_MAX = 8
"""With fewer elements than this a data set is only looked at, not trained on (taste)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data set.

    source, digest, length: as in `Place`. elements: of an iteration, negative if not known. unknown: why its order
    cannot be repeated, "" if it can.
    """

    source: str
    digest: str
    length: int
    elements: int
    unknown: str

    @property
    def key(self) -> Key:
        """Return what another run finds the data set by."""
        return self.digest, self.length


class Resume:
    """The places of a program: files beside its checkpoints, and restored places that wait for their data sets.

    program: name of the script. say: writes a line to people.
    """

    def __init__(self, program: str, say: Callable[[str], None], *, is_on: bool) -> None:
        self.is_on = is_on
        self._program, self._say = program, say
        self._run = secrets.token_hex(8)
        self._pid = os.getpid()
        self.seeds = Seeds(say)
        self._lock = threading.RLock()
        self._sources: list[Callable[[], Iterable[DatasetPlace]]] = []
        self._restored: list[Callable[[], None]] = []
        self._waiting: list[DatasetPlace] = []
        self._file = ""
        """The file that was read last."""
        self._files: dict[DatasetPlace, str] = {}
        self._is_claimed = False
        """A data set has claimed a place of that file."""
        self._missing = ""
        """Line to say about a file that does not exist, "" if there is none."""
        self._claimed: set[Key] = set()
        self._said: set[str] = set()
        self._written: list[Path] = []
        self._thread = threading.local()

    def add_source(self, places: Callable[[], Iterable[DatasetPlace]]) -> None:
        """Add a function that returns places; it is called when a checkpoint is written."""
        self._sources.append(places)

    def on_restored(self, restored: Callable[[], None]) -> None:
        """Add a function that is called after a restore: unused iterators can then claim their places."""
        self._restored.append(restored)

    # --- files --------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, checkpoint: Any) -> Generator[None]:
        """Write the file of a checkpoint, which the block writes: before without digest, afterwards complete."""
        depth = getattr(self._thread, "depth", 0)
        is_outer = depth == 0 and os.getpid() == self._pid
        self._thread.depth = depth + 1
        try:
            path = path_of(checkpoint) if is_outer else ""
            file = self._file_of(path) if path else None
            kept = () if file is None else self._begun(file)
            yield
            if file is not None and kept:
                self._ended(file, kept, path)
        finally:
            self._thread.depth = depth

    def _ended(self, file: Path, kept: tuple[Kept, ...], checkpoint: str) -> None:
        try:
            # asked again: meanwhile the program may have used an iterator so that its place is unknown
            places = doubted(kept[-1].places, self._places())
            self._write(file, ended(kept, replace(kept[-1], digest=digest_of(checkpoint), places=places)))
            self._sweep(file)
        except OSError as error:
            self.say_once(f"{file} is not complete: {error}")

    def _file_of(self, checkpoint: str) -> Path | None:
        if "://" in checkpoint:
            self.say_once(f"{checkpoint} is not on a file system of this machine: no place is kept beside it")
            return None
        return Path(f"{checkpoint}{SUFFIX}")

    def _begun(self, file: Path) -> tuple[Kept, ...]:
        before: tuple[Kept, ...] = ()
        with suppress(OSError, PlacesRefused):
            before = kept_of(file.read_bytes())
        kept = begun(before, Kept(self._run, "", tuple(self._places()), self.seeds.states()))
        return kept if self._write(file, kept) else ()

    def _write(self, file: Path, kept: tuple[Kept, ...]) -> bool:
        """Replace a file at once, so that it is always complete; return whether that succeeded."""
        made = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(text_of(kept, self._program))
            made.replace(file)
        except OSError as error:
            self.say_once(f"{file} is not written: {error}")
            return False
        return True

    def _sweep(self, written: Path) -> None:
        """Remove files of this process whose checkpoints the program has removed."""
        kept: list[Path] = []
        with self._lock:
            for file in dict.fromkeys([*self._written, written]):
                checkpoint = str(file).removesuffix(SUFFIX)
                if os.path.exists(checkpoint) or os.path.exists(f"{checkpoint}.index"):
                    kept.append(file)
                else:
                    file.unlink(missing_ok=True)
            self._written = kept

    # --- places -------------------------------------------------------------------------------------------

    def _places(self) -> list[DatasetPlace]:
        """Return the current places, and restored places that still wait."""
        found = self._places_now()
        for each in found:
            if each.unknown:
                self.say_once(f"no place is kept for {each.source}: {each.unknown}")
        if not self._is_claimed and any(each.consumed and each.key not in self._claimed for each in found):
            self._waiting = []
        return found + [each for each in self._waiting if not each.unknown]

    def _places_now(self) -> list[DatasetPlace]:
        found: list[DatasetPlace] = []
        for places in self._sources:
            try:
                found += places()
            except Exception as error:  # the program's own checkpoint is written or read in any case
                self.say_once(f"places are not told: {in_words(error)}")
        return found

    def _under_way(self) -> set[Key]:
        """Return the keys of data sets that this process has resumed, or trains with."""
        return self._claimed | {each.key for each in self._places_now() if each.consumed >= LOOKED_AT_MAX}

    def read(self, checkpoint: Any) -> None:
        """Read the file of a restored checkpoint: its places wait for their data sets.

        A place is ignored if its data set is under way, since the program then goes back within a run; or if a place of
        the same data set waits already.
        """
        path = path_of(checkpoint) if os.getpid() == self._pid else ""
        file = self._file_of(path) if path else None
        if file is None:
            return
        try:
            kept = of_checkpoint(kept_of(file.read_bytes()), digest_of(path))
        except FileNotFoundError:
            # said once a data set begins: a program that only predicts reads checkpoints, too
            self._missing = f"{file} is not there: {ANEW}. It is written where the program runs with --resume"
            self._call_restored()
            return
        except (OSError, PlacesRefused) as error:
            self.say_once(f"{file}: {error}: {ANEW}. Remove it, or restore an older checkpoint")
            return
        if kept is None:
            self.say_once(
                f"{file} belongs to another checkpoint of this name: {ANEW}. Restore one written with --resume"
            )
            return
        under_way = self._under_way()
        with self._lock:
            places = [each for each in kept.places if each.key not in under_way]
            if kept.run == self._run or (kept.places and not places):
                return
            others = {each.key for each in self._waiting}
            if new := [each for each in places if each.key not in others]:
                self._waiting += new
                self._is_claimed = False
            self._files = dict.fromkeys(places, str(file)) | self._files
            self._file = str(file)
            self._missing = ""
        self.seeds.restore(kept.seeds)
        for each in places:
            if each.unknown:
                self.say_once(f"{each.source} begins anew: {each.unknown}")
        self._call_restored()

    def _call_restored(self) -> None:
        for restored in self._restored:
            try:
                restored()
            except Exception as error:  # the program goes on as alone
                self.say_once(f"{ANEW}: {in_words(error)}")

    @property
    def is_waiting(self) -> bool:
        """Return whether places wait for their data sets, or a missing file is still to be reported."""
        return bool(self._waiting or self._missing)

    def claim(self, identity: Identity) -> DatasetPlace | None:
        """Return the place at which the next iterator of a data set begins; None: at the beginning of its data."""
        with self._lock:
            found = next((each for each in self._waiting if each.key == identity.key), None)
            if found is None:
                self._say_none(identity)
                return None
            self._waiting.remove(found)
            self._claimed.add(found.key)
            self._is_claimed, self._missing = True, ""
        if found.unknown or (not found.consumed and not found.orders):
            return None
        if 0 <= identity.elements < found.consumed:
            self.say_short(found, identity.elements)
            return None
        return found

    def say_at(self, place: DatasetPlace) -> None:
        """Write a line: a data set goes on at a place."""
        if place.consumed:
            passes = f" of order {place.orders[0]}" if place.orders else ""
            file = self._files.get(place, self._file)
            self._say(f"resume: {place.source} goes on behind {place.consumed} elements{passes}: {file}")

    def say_short(self, place: DatasetPlace, length: int) -> None:
        """Write a line: a data set has fewer elements than were trained."""
        self.refuse(place, f"it has {length} elements, of which {place.consumed} were trained")

    def refuse(self, place: DatasetPlace, reason: str) -> None:
        """Write a line: why a place is not used."""
        file = self._files.get(place, self._file)
        self.say_once(f"{file}: {place.source} begins anew: {reason}. Give the data that it had")

    def _say_none(self, identity: Identity) -> None:
        """Write a line: no place of the file fits a data set. A data set that is only looked at gets no line."""
        same = (each for each in self._waiting if each.identity == identity.digest and not each.unknown)
        if (other := next(same, None)) is not None:
            self.refuse(
                other, f"with {identity.length} elements at its source it is not the one that had {other.length}"
            )
            return
        if 0 <= identity.elements < LOOKED_AT_MAX:
            return
        if self._missing and identity.key not in self._under_way():
            self.say_once(self._missing)
            self._missing = ""
        elif self._waiting and not self._is_claimed:
            here = (each for each in self._waiting if self._files[each] == self._file)
            named = ", ".join(dict.fromkeys(each.source for each in here))
            self.say_once(
                f"{self._file} has no place for {identity.source}, but for {named}: {ANEW}. "
                "Restore a checkpoint of the same pipeline"
            )

    def say_once(self, text: str) -> None:
        """Write a line to people, unless the same was written before."""
        if text not in self._said:
            self._said.add(text)
            self._say(f"resume: {text}")


def path_of(checkpoint: object) -> str:
    """Return the path of a checkpoint; "" for a SavedModel, from which nobody trains on, and for other objects."""
    try:
        path = os.fsdecode(checkpoint)  # type: ignore[arg-type]
    except TypeError:
        return ""
    return "" if Path(path).parts[-2:] == ("variables", "variables") else path


def digest_of(checkpoint: str) -> str:
    """Return a digest of a checkpoint's content: for TensorFlow, of the index, which has a checksum of each tensor."""
    for path in (f"{checkpoint}.index", checkpoint):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    return ""


def dropped(take: Callable[[], object], count: int) -> int:
    """Take elements that the program has received before; return how many there were. An error counts as an element."""
    import tensorflow as tf

    for index in range(count):
        try:
            take()
        except tf.errors.OutOfRangeError:
            return index
        except tf.errors.OpError:
            continue
    return count

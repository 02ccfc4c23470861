"""`stretto run --resume`: a file of places in the data beside each checkpoint; after a restore the data go on there.

    save:     places of all sources -> <checkpoint>.stretto.json
    restore:  <checkpoint>.stretto.json -> waiting places -> each claimed by the next iterator of its data set

A program that is started again restores its variables itself, and its data begin anew. Here they are advanced, so that
the next step takes the element behind the last one that was trained before the checkpoint. Whatever stands in the way
is said, and the program goes on as without `--resume`: it must also start where there is no checkpoint of it yet.
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
from .places import SUFFIX, Kept, Key, Place, PlacesRefused, begun, doubted, ended, kept_of, of_checkpoint, text_of
from .seeds import Seeds

ANEW = "the data begin anew"
LOOKED_AT_MAX = 8
"""A data set of fewer elements is looked at, and not trained (taste)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A data set, as another process finds it again; see `Place` for the names.

    elements: of one iteration, negative if not known. unknown: why its order cannot be repeated.
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
    """All places of one program: the files beside its checkpoints, and what waits after a restore.

    program: the script's name. say: writes a line to people.
    """

    def __init__(self, program: str, say: Callable[[str], None], *, is_on: bool) -> None:
        self.is_on = is_on
        self._program, self._say = program, say
        self._run = secrets.token_hex(8)
        self._pid = os.getpid()
        self.seeds = Seeds(say)
        self._lock = threading.RLock()
        self._sources: list[Callable[[], Iterable[Place]]] = []
        self._restored: list[Callable[[], None]] = []
        self._waiting: list[Place] = []
        self._file = ""
        """the last file whose places wait"""
        self._files: dict[Place, str] = {}
        self._is_claimed = False
        """a place of that file was claimed"""
        self._missing = ""
        """of a file that is not there"""
        self._claimed: set[Key] = set()
        self._said: set[str] = set()
        self._written: list[Path] = []
        self._thread = threading.local()

    def add_source(self, places: Callable[[], Iterable[Place]]) -> None:
        """Add a source of places, which is asked when a checkpoint is written."""
        self._sources.append(places)

    def on_restored(self, restored: Callable[[], None]) -> None:
        """Add what is called after a restore: iterators that are not used yet may claim their places."""
        self._restored.append(restored)

    # --- files --------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, checkpoint: Any) -> Generator[None]:
        """Write the file of a checkpoint, before that is written and when it is."""
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
            # asked again: a program may have shown while it was saved that nobody can tell its place
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
        """Write a file so that it is always a whole one; return whether it was written."""
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
        """Remove files of this process whose checkpoint the program has removed."""
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

    def _places(self) -> list[Place]:
        """Return the places of now; those that wait are still those of their data sets."""
        found = self._places_now()
        for each in found:
            if each.unknown:
                self.say_once(f"no place is kept for {each.source}: {each.unknown}")
        if not self._is_claimed and any(each.consumed and each.key not in self._claimed for each in found):
            self._waiting = []
        return found + [each for each in self._waiting if not each.unknown]

    def _places_now(self) -> list[Place]:
        found: list[Place] = []
        for places in self._sources:
            try:
                found += places()
            except Exception as error:  # a checkpoint of the program is written or read in any case
                self.say_once(f"places are not told: {in_words(error)}")
        return found

    def _under_way(self) -> set[Key]:
        """Return the data sets that this process has gone on with, or trains with."""
        return self._claimed | {each.key for each in self._places_now() if each.consumed >= LOOKED_AT_MAX}

    def read(self, checkpoint: Any) -> None:
        """Let the places of a checkpoint wait for their data sets.

        No place waits for one that is under way: the program goes back within one run. Nor for one of which a place of
        an earlier file waits.
        """
        path = path_of(checkpoint) if os.getpid() == self._pid else ""
        file = self._file_of(path) if path else None
        if file is None:
            return
        try:
            kept = of_checkpoint(kept_of(file.read_bytes()), digest_of(path))
        except FileNotFoundError:
            # said once a data set begins: a model that only predicts has none
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
            except Exception as error:  # the program goes on as it does alone
                self.say_once(f"{ANEW}: {in_words(error)}")

    @property
    def is_waiting(self) -> bool:
        """Return whether a place waits for its data set, or there is something to say of it."""
        return bool(self._waiting or self._missing)

    def claim(self, identity: Identity) -> Place | None:
        """Return the place at which the next iterator of a data set begins; None: at its beginning."""
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

    def say_at(self, place: Place) -> None:
        """Say that a data set goes on at a place."""
        if place.consumed:
            passes = f" of order {place.orders[0]}" if place.orders else ""
            file = self._files.get(place, self._file)
            self._say(f"resume: {place.source} goes on behind {place.consumed} elements{passes}: {file}")

    def say_short(self, place: Place, length: int) -> None:
        """Say that a data set has fewer elements than were consumed."""
        self.refuse(place, f"it has {length} elements, of which {place.consumed} were trained")

    def refuse(self, place: Place, reason: str) -> None:
        """Say why a place is not used."""
        file = self._files.get(place, self._file)
        self.say_once(f"{file}: {place.source} begins anew: {reason}. Give the data that it had")

    def _say_none(self, identity: Identity) -> None:
        """Say that the file is of no use, unless only an element is looked at."""
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
        """Say something to people, once."""
        if text not in self._said:
            self._said.add(text)
            self._say(f"resume: {text}")


def path_of(checkpoint: object) -> str:
    """Return the path of a checkpoint, "" if it is none: nobody trains on from a SavedModel."""
    try:
        path = os.fsdecode(checkpoint)  # type: ignore[arg-type]
    except TypeError:
        return ""
    return "" if Path(path).parts[-2:] == ("variables", "variables") else path


def digest_of(checkpoint: str) -> str:
    """Return a digest of a checkpoint's content: of TensorFlow's, the index has the checksum of each tensor."""
    for path in (f"{checkpoint}.index", checkpoint):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    return ""


def dropped(take: Callable[[], object], count: int) -> int:
    """Take elements that the program has had, and return how many there were. An error counts as one."""
    import tensorflow as tf

    for index in range(count):
        try:
            take()
        except tf.errors.OutOfRangeError:
            return index
        except tf.errors.OpError:
            continue
    return count

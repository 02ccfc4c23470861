"""The index of a dataset: the number of rows of every piece of every file, so that a sample's number says its place.

It is made once. Where that costs something (a split by time, or more than 16 files) it is kept as a file: where
``index=`` says, or else beside the data, or else, if that place is read-only, in the scratch space of the machine.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import DataError
from .columns import array_of
from .formats import Format, kind_of
from .places import REQUESTS, File, Store, locate

log = logging.getLogger("stretto.readers")

FILES_WITHOUT_INDEX = 16
"""So many footers are read at the same time, in about 40 ms from a store of 20 ms: less than an index is worth."""
_VERSION = 2
_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("size", pa.int64()),
        ("changed_s", pa.int64()),
        ("rows", pa.list_(pa.int64())),
        ("train", pa.list_(pa.int64())),
        ("evaluate", pa.list_(pa.int64())),
    ],
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An indexed file. rows: of each piece. train, evaluate: those on either side of a split; all train without one."""

    file: File
    kind: str
    rows: NDArray[np.int64]
    train: NDArray[np.int64]
    evaluate: NDArray[np.int64]


Count = Callable[[File, Format, NDArray[np.int64]], "tuple[NDArray[np.int64], NDArray[np.int64]]"]
"""(file, itself opened, rows of its pieces) -> rows of each piece that train, and that evaluate."""
Open = Callable[[File, str], Format]


@dataclass(frozen=True, slots=True)
class Settings:
    """The reader's settings on which the content of an index depends. named: ``index=``, if it is given."""

    split: str
    named: str | None
    filesystem: object = None

    def stamp(self) -> bytes:
        """Return what an index must have been made with to hold."""
        return f"{_VERSION} {self.split}".encode()


def index_of(files: Sequence[File], settings: Settings, opened: Open, count: Count) -> list[Entry]:
    """Return the entries of these files, from the kept index as far as it holds. Raises DataError."""
    kinds = [kind_of(file) for file in files]
    if not (settings.named or settings.split or len(files) > FILES_WITHOUT_INDEX):
        return _made(list(zip(files, kinds, strict=True)), settings, opened, count)
    places = _places(files, settings)
    known: dict[str, tuple[int, int, list[NDArray[np.int64]]]] = {}
    for store, path in places:
        known = _read(store, path, settings)
        if known:
            break
    if settings.named and known:
        _check_unchanged(files, known, settings.named)
    todo = [(file, kind) for file, kind in zip(files, kinds, strict=True) if not _holds(known.get(file.name), file)]
    if todo and known:
        log.warning("%d files are new or changed since the index was made, %s first", len(todo), todo[0][0].name)
    made = {entry.file.name: entry for entry in _made(todo, settings, opened, count)}
    entries = [
        made.get(file.name) or _entry(file, kind, known[file.name][2]) for file, kind in zip(files, kinds, strict=True)
    ]
    if todo:
        _keep(places, entries, settings)
    return entries


def _made(todo: list[tuple[File, str]], settings: Settings, opened: Open, count: Count) -> list[Entry]:
    """Read footers at the same time; a split reads a column of one file per core."""

    def make(each: tuple[File, str]) -> Entry:
        file, kind = each
        try:
            source = opened(file, kind)
            rows = file.store.ask(file.name, source.pieces)
            return Entry(file, kind, rows, *count(file, source, rows))
        except pa.ArrowInvalid as error:
            raise DataError(f"{file.name} cannot be read: {error}") from error
        except DataError as error:
            text = str(error)
            raise error if file.name in text else DataError(f"{file.name}: {text}") from error

    if not todo:
        return []
    with ThreadPoolExecutor(min(len(todo), (os.cpu_count() or 1) if settings.split else REQUESTS)) as pool:
        return list(pool.map(make, todo))


def _places(files: Sequence[File], settings: Settings) -> list[tuple[Store, str]]:
    """Return where the index may be kept, the best place first."""
    if settings.named:
        return [locate(settings.named, settings.filesystem)]
    # folders of the data: where all of them begin, as with day=1/… and day=2/…
    folders = [file.path.rpartition("/")[0].split("/") for file in files]
    low, high = min(folders), max(folders)  # all others begin with what these two begin with
    shared = [part for part, _ in takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))]
    told = settings.stamp() + b"\n" + files[0].name.encode()
    name = f"_stretto_index_{hashlib.blake2b(told, digest_size=6).hexdigest()}.parquet"
    places: list[tuple[Store, str]] = []
    if not files[0].name.startswith("http"):
        places.append(
            (files[0].store, "/".join([*shared, name]) if shared != [""] or files[0].path[:1] == "/" else name)
        )
    scratch = Path(os.environ.get("STRETTO_POD_FOLDER") or tempfile.gettempdir()) / f"stretto-index-{os.getuid()}"
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        if scratch.stat().st_uid == os.getuid():
            places.append(locate(str(scratch / name)))
    except OSError:
        pass  # no scratch space: the index is made by every process
    return places


def _read(store: Store, path: str, settings: Settings) -> dict[str, tuple[int, int, list[NDArray[np.int64]]]]:
    """Return file -> (size, time of change, its arrays) of a kept index; empty if no index can be read."""
    try:
        content = store.read_all(path)
        if content is None:
            return {}
        table = pq.ParquetFile(io.BytesIO(content)).read()
        if (table.schema.metadata or {}).get(b"stretto_index") != settings.stamp():
            raise DataError("it was made with another format or split, or is no index")
    except (DataError, pa.ArrowException, OSError) as error:
        if settings.named:
            raise DataError(
                f"index = {store.show(path)} cannot be used: {error}; delete it, or name another file"
            ) from error
        log.warning("the index %s cannot be used and is made again: %s", store.show(path), error)
        return {}
    known: dict[str, tuple[int, int, list[NDArray[np.int64]]]] = {}
    arrays = [table.column(name).combine_chunks() for name in ("rows", "train", "evaluate")]
    heads = zip(*(table.column(name).to_pylist() for name in ("file", "size", "changed_s")), strict=True)
    for row, (name, size, changed) in enumerate(heads):
        known[name] = (size, changed, [array_of(array[row].values) for array in arrays])
    return known


def _holds(known: tuple[int, int, list[NDArray[np.int64]]] | None, file: File) -> bool:
    return known is not None and known[:2] == (file.size, file.changed_s)


def _entry(file: File, kind: str, arrays: list[NDArray[np.int64]]) -> Entry:
    return Entry(file, kind, *arrays)


def _check_unchanged(
    files: Sequence[File], known: dict[str, tuple[int, int, list[NDArray[np.int64]]]], at: str
) -> None:
    """Raise DataError unless a named index is of these data, with nothing but new files behind them."""
    remedy = f"samples keep the numbers that the index {at} gives: delete it to number them anew, in a new job"
    names = [file.name for file in files]
    gone = known.keys() - set(names)
    if gone:
        raise DataError(f"{min(gone)} is in the index and no longer in the data; {remedy}")
    for place, file in enumerate(files):
        if file.name in known and not _holds(known[file.name], file):
            then = known[file.name][0]
            raise DataError(f"{file.name} has changed since the index was made ({then} bytes then); {remedy}")
        if file.name not in known and any(name in known for name in names[place:]):
            raise DataError(f"{file.name} is new and comes before files of the index; {remedy}")


def _keep(places: list[tuple[Store, str]], entries: list[Entry], settings: Settings) -> None:
    columns = {
        "file": [entry.file.name for entry in entries],
        "size": [entry.file.size for entry in entries],
        "changed_s": [entry.file.changed_s for entry in entries],
        "rows": [entry.rows for entry in entries],
        "train": [entry.train for entry in entries],
        "evaluate": [entry.evaluate for entry in entries],
    }
    content = io.BytesIO()
    schema = _SCHEMA.with_metadata({"stretto_index": settings.stamp()})
    pq.write_table(pa.table(columns, schema=schema), content, compression="zstd")
    for number, (store, path) in enumerate(places):
        try:
            _write(store, path, content.getvalue())
        except (OSError, DataError, pa.ArrowException) as error:
            if settings.named:
                raise DataError(f"index = {store.show(path)} cannot be written: {error}") from error
            log.info("no index is kept at %s: %s", store.show(path), error)
            continue
        if number and not entries[0].file.store.is_local:
            log.warning("the folder of the data is read-only, so every machine counts the rows itself; state index=")
        return


def _write(store: Store, path: str, content: bytes) -> None:
    if not store.is_local:
        store.write_all(path, content)  # an object appears as a whole
        return
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or ".", delete=False) as file:
        file.write(content)
    os.replace(file.name, path)

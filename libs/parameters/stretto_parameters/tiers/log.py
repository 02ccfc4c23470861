"""The log: records of the cold rows of one table, in a file without a name.

A record is (stored key, row, checksum), never across two pages of the disk, and never changed once it is written.
Records are written one after the other into segments; a segment without live records is written anew. The file is
unlinked when it is opened, since rows on the disk of a lost server are worth nothing: the job goes back to its
checkpoint. So nothing is flushed, and nothing stays behind.

Numbers are allotted and dropped by whoever has the lock of the store alone. Records are written and read without that
lock: `hold` keeps segments from being written anew while somebody reads records that he looked up before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import LogDamaged, LogFull
from ..kernels import Kernels
from ..layout import RowFormat
from ..parts import NUMBERS_MAX
from .pages import PageFile, ReadQueues, aligned

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_SEGMENT_BYTES = 2**18
_SEGMENT_PAGES_MIN = 16
_SPARSE = 0.5
"""A segment of which a smaller share is live is written anew (LFS: Rosenblum and Ousterhout, TOCS 1992)."""
_WASTED, _WASTED_IF_FULL = 0.5, 0.8
"""A log is tidied where a smaller share u of its records is live. Of the sparsest segment the share e is live then, u =
(e - 1) / ln e (Menon, HPDC 1995), and a row that goes to the disk costs e / (1 - e) that are written anew: 0.25 at 0.5,
and 1.7 at 0.8. A full log has to pay it."""
_READ_AT_ONCE = 4096


class RowLog:
    """The records of a table's cold rows. room_bytes: returns by how much the file may still grow."""

    def __init__(
        self,
        folder: Path | None,
        form: RowFormat,
        room_bytes: Callable[[], int],
        kernels: Kernels,
        queues: ReadQueues | None = None,
    ) -> None:
        """The file is opened in `folder`, which must be there, with the first record: most servers never spill.

        queues: of reads, which logs may share.
        """
        self._folder = folder
        self._queues = queues or ReadQueues(kernels)
        self._file: PageFile | None = None
        self.form = form
        self._kernels = kernels
        self._pages = max(_SEGMENT_PAGES_MIN, _SEGMENT_BYTES // form.page_bytes)
        self._records = self._pages * form.records_per_page
        self._room_bytes = room_bytes
        self.live = 0
        """Records that are live, those among them that are allotted and not written yet."""
        self._live: list[int] = []  # of each segment
        self._free: list[int] = []
        self._left_alone: set[int] = set()
        self._tail, self._used = -1, self._records
        """The segment that is written, and how many of its records are allotted; none at first."""
        self._emptied: list[tuple[int, int]] = []  # (era in which it was emptied, segment)
        self._era = 0
        self._held: dict[object, int] = {}
        """The era in which each hold began. Threads add and remove theirs at any time, in one step of a dictionary."""
        self.reads = 0
        self._is_full = False

    @property
    def file(self) -> PageFile:
        """The file, which is opened when it is asked for first. Raises OSError."""
        assert self._folder is not None, "without a disk no row is cold"
        if self._file is None:
            self._file = PageFile(self._folder, self.form.page_bytes, self._kernels, self._queues)
        return self._file

    def close(self) -> None:
        """Give the file's room back to the disk."""
        if self._file is not None:
            self._file.close()

    @property
    def segment_bytes(self) -> int:
        return self._pages * self.form.page_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes that the file takes on the disk at most."""
        return len(self._live) * self.segment_bytes

    # --- numbers ----------------------------------------------------------------------------------------------

    def allot(self, count: int, *, last: bool = False) -> U64:
        """Return the numbers of the next records, live from now on: [count]. Raises OSError with none allotted.

        They begin with a page, which no other records share: pages are written whole. last: the last segment may be
        taken, too. It is kept for rows of sparse segments, or a full log stayed full.
        """
        file, per_page = self.file, self.form.records_per_page
        self._reclaim()
        self._used = -(-self._used // per_page) * per_page
        wanted = -(-(count - (self._records - self._used)) // self._records) + (not last)
        new = min(self._room_bytes() // self.segment_bytes, NUMBERS_MAX // self._records - len(self._live))
        self._is_full = wanted > len(self._free) + max(0, new)
        if self._is_full:
            raise LogFull(
                f"the log of cold rows has {self.file_bytes} bytes and no room for {count} rows more: give "
                "`spill_limit` more, or the server more memory"
            )
        numbers = np.empty(count, np.int64)
        done = 0
        while done < count:
            if self._used == self._records:
                self._begin_segment(file)
            taken = min(count - done, self._records - self._used)
            begin = self._tail * self._records + self._used
            numbers[done : done + taken] = np.arange(begin, begin + taken)
            self._live[self._tail] += taken
            self._used += taken
            done += taken
        self.live += count
        return numbers.astype(np.uint64)

    def drop(self, numbers: NDArray[np.integer]) -> None:
        """Take records from the live ones."""
        segments, counts = np.unique(numbers.astype(np.int64) // self._records, return_counts=True)
        self.live -= len(numbers)
        for segment, count in zip(segments.tolist(), counts.tolist(), strict=True):
            self._live[segment] -= count
            assert self._live[segment] >= 0, f"segment {segment} lost a record twice"
            if not self._live[segment] and segment != self._tail:
                self._empty(segment)

    def _empty(self, segment: int) -> None:
        self._emptied.append((self._era, segment))
        self._era += 1

    @property
    def is_wasteful(self) -> bool:
        """True if the file is larger than its live records are worth: only then some segment may be sparse."""
        wasted = _WASTED_IF_FULL if self._is_full else _WASTED
        return self.live < wasted * len(self._live) * self._records

    def sparse(self) -> int | None:
        """Return the segment with the fewest live records, if it is worth to be written anew."""
        if not self.is_wasteful:
            return None
        live = np.array(self._live)
        live[live == 0] = self._records
        live[[self._tail, *self._left_alone]] = self._records
        segment = int(live.argmin())
        return segment if live[segment] < _SPARSE * self._records else None

    def leave_alone(self, segment: int) -> None:
        """Pass a segment over from now on, if it still has live records: nobody finds the keys of these."""
        if self._live[segment]:
            self._left_alone.add(segment)

    def _begin_segment(self, file: PageFile) -> None:
        if not self._free:
            file.resize(self.file_bytes + self.segment_bytes)
            self._free.append(len(self._live))
            self._live.append(0)
        before, self._tail, self._used = self._tail, self._free.pop(), 0
        self._left_alone.discard(self._tail)
        if before >= 0 and not self._live[before]:  # emptied while it was the tail
            self._empty(before)

    def _reclaim(self) -> None:
        """Free the emptied segments that no hold keeps."""
        oldest = min(list(self._held.values()), default=self._era)
        self._free += [segment for era, segment in self._emptied if era < oldest]
        self._emptied = [(era, segment) for era, segment in self._emptied if era >= oldest]

    def hold(self) -> object:
        """Keep all records that are live now as they are, until `let_go` of what this returns.

        The caller shares the lock of the store, or has it alone.
        """
        ticket = object()
        self._held[ticket] = self._era
        return ticket

    def let_go(self, ticket: object) -> None:
        """End a hold, under any lock or none. An ended hold may be ended again."""
        self._held.pop(ticket, None)

    # --- records ----------------------------------------------------------------------------------------------

    def write(self, numbers: U64, keys: U64, rows: F32) -> None:
        """Write records [n] of numbers in the order that they were allotted. Raises OSError."""
        at, per_page = numbers.astype(np.int64), self.form.records_per_page
        for begin, end in self._runs(at):
            assert at[begin] % per_page == 0, "records that were allotted together begin with a page"
            pages = aligned(-(-(end - begin) // per_page) * self.form.page_bytes)
            pages[:] = 0
            self._kernels.seal(self.form, keys[begin:end], rows[begin:end], pages)
            self.file.write(pages, int(at[begin]) // per_page * self.form.page_bytes)

    @staticmethod
    def _runs(at: I64) -> Iterator[tuple[int, int]]:
        """Yield the ranges of successive numbers."""
        if len(at):
            breaks = (np.flatnonzero(np.diff(at) != 1) + 1).tolist()
            yield from zip([0, *breaks], [*breaks, len(at)], strict=True)

    def read(self, numbers: U64, keys: U64) -> F32:
        """Return the rows of records [n, words], in any order. The caller holds the log. Raises LogDamaged."""
        order = np.argsort(numbers, kind="stable")
        found = np.empty((len(keys), self.form.words), np.float32)
        for begin in range(0, len(order), _READ_AT_ONCE):
            some = order[begin : begin + _READ_AT_ONCE]
            found[some] = self._read(numbers[some].astype(np.int64), keys[some])
        self.reads += len(order)
        return found

    def _read(self, at: I64, keys: U64) -> F32:
        offsets = self.form.record_offsets(at)
        raw = np.empty(len(at) * self.form.record_bytes, np.uint8)
        came = self.file.read(offsets, self.form.record_bytes, raw)
        if came < len(at):
            raise LogDamaged(f"the record at byte {offsets[came]} of the log of cold rows cannot be read")
        return self.rows_of(keys, raw)

    def read_segment(self, segment: int) -> tuple[U64, U64, Bytes]:
        """Return (numbers, stored keys, records [n, record_bytes]) of a segment as the disk has them, damaged or not.

        Raises LogDamaged.
        """
        begin = segment * self.segment_bytes
        raw = self.file.read_range(begin, self.segment_bytes)
        if len(raw) < self.segment_bytes:
            raise LogDamaged(f"the segment at byte {begin} of the log of cold rows cannot be read")
        numbers = segment * self._records + np.arange(self._records)
        of_page = self.form.records_per_page * self.form.record_bytes
        records = raw.reshape(self._pages, -1)[:, :of_page].reshape(-1, self.form.record_bytes)
        keys = np.ascontiguousarray(records[:, :8]).view(np.uint64)[:, 0]
        return numbers.astype(np.uint64), keys, records

    def rows_of(self, keys: U64, records: Bytes) -> F32:
        """Return the rows of records that were read with their segment, [n, words]. Raises LogDamaged."""
        words = np.empty((len(keys), self.form.words), np.float32)
        fits = self._kernels.unseal(self.form, keys, np.ascontiguousarray(records), words)
        if fits < len(keys):
            raise LogDamaged(f"the record of key {keys[fits]} in the log of cold rows is damaged: a failing disk?")
        return words

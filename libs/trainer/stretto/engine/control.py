"""Control operations on one server of another process: the same methods as its own `LockedStore`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_parameters import Applied, Own, Progress, RawBucket, RawSlices

from . import codec
from .codec import Frozen, Ranges, ServerStats, WorkerSeen
from .layout import F32, I64, Layout
from .link import Access, Link
from .protocol import Kind


class Control:
    """A control session. Each method does what the method of `LockedStore` with its name does. Raises ServerLost.

    layout: None where the server's own is taken as it is.
    """

    def __init__(
        self, layout: Layout | None, address: str, server: int, *, access: Access, timeout_s: float = 30.0
    ) -> None:
        self.address = address
        self.server = server
        self._link = Link(server, address, access, layout, timeout_s)

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        return codec.unpack(self._link.ask(Kind.CALL, codec.pack([name, arguments, named])))

    @property
    def layout(self) -> Layout | None:
        """The server's layout; None while nobody has told it."""
        known = self._ask("known_layout")
        return Layout.from_dict(known) if known else None

    def lineage(self) -> int:
        return self._ask("lineage")

    def own(self) -> I64:
        return self._ask("own")

    def columns(self) -> list[int]:
        return self._ask("columns")

    def set_own(self, columns: Iterable[int], to: Own, expect: Own | None = None, *, whole: bool = False) -> int:
        wanted = None if expect is None else int(expect)
        return self._ask("set_own", [int(c) for c in columns], int(to), wanted, whole=whole)

    def freeze_and_export(
        self, columns: Sequence[int], since_epoch: int, bytes_max: int, known_finished: int
    ) -> Frozen | None:
        if self._link.freezes_rows:
            return self._ask("freeze_and_export", list(columns), since_epoch, bytes_max, known_finished)
        if self.set_own(columns, Own.FROZEN, Own.MINE, whole=True) != len(columns):
            return None
        return Frozen(self.all_progress(known_finished))

    def clear(self) -> None:
        self._ask("clear")

    def seed(self, slices: F32, state: F32) -> tuple[I64, I64]:
        seeded, own = self._ask("seed", slices, state)
        return seeded, own

    def progress(self, shard: int, attempt: int) -> tuple[bool, I64, I64]:
        finished, own, record = self._ask("progress", shard, attempt)
        return finished, own, record

    def sizes(self) -> I64:
        return self._ask("sizes")

    def raw_sizes(self) -> I64:
        return self._ask("raw_sizes")

    def categories(self) -> int:
        return self._ask("categories")

    def cold_rows(self) -> int:
        return self._ask("cold_rows")

    def memory_bytes(self) -> int:
        return self._ask("memory_bytes")

    def image_bytes(self) -> int:
        return self._ask("image_bytes")

    def applied(self) -> Applied:
        return self._ask("applied")

    def stats(self) -> ServerStats:
        return self._ask("stats")

    def workers(self) -> dict[int, WorkerSeen]:
        return self._ask("workers")

    def checksum(self) -> int:
        return self._ask("checksum")

    def next_epoch(self) -> int:
        return self._ask("next_epoch")

    def export_ranges(self, buckets: Sequence[int], since_epoch: int, table: int, first: int, bytes_max: int) -> Ranges:
        asked = "export_ranges", list(buckets), since_epoch, table, first, bytes_max
        found, next_table, next_first = self._ask(*asked)
        return [tuple(raw) for raw in found], next_table, next_first

    def import_bucket(self, bucket: int, raw: Sequence[RawBucket], *, replace: bool = True) -> None:
        self._ask("import_bucket", bucket, list(raw), replace=replace)

    def import_ranges(self, ranges: Sequence[tuple[int, Sequence[RawBucket], bool]]) -> None:
        for bucket, raw, replace in ranges:
            self.import_bucket(bucket, raw, replace=replace)

    def drop_bucket(self, bucket: int) -> None:
        self._ask("drop_bucket", bucket)

    def export_policy(self, bucket: int) -> NDArray[np.uint8]:
        return self._ask("export_policy", bucket)

    def import_policy(self, bucket: int, given: NDArray[np.uint8]) -> None:
        self._ask("import_policy", bucket, given)

    def export_slices(self, ids: I64) -> RawSlices:
        return self._ask("export_slices", np.asarray(ids, np.int64))

    def import_slices(self, raw: RawSlices) -> None:
        self._ask("import_slices", raw)

    def records(self) -> tuple[I64, I64]:
        shards, records = self._ask("records")
        return shards, records

    def all_progress(self, known_finished: int = 0) -> Progress:
        return self._ask("all_progress", known_finished)

    def merge_columns(self, columns: Iterable[int], progress: Progress) -> None:
        self._ask("merge_columns", [int(c) for c in columns], progress)

    def finished(self) -> I64:
        return self._ask("finished")

    def finish(self, shards: Iterable[int]) -> None:
        self._ask("finish", [int(shard) for shard in shards])

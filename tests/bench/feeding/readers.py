"""Reading from an object store beside reading from a local folder: the same rows, with 20 ms before every request.

The store is nanio, a real S3-compatible server, behind a proxy that waits before it passes a request on; each is a
process of its own. All rows are read in batches of 512, in order, as fast as they come: nothing trains meanwhile, which
is harder than any job. A row group has 25,000 rows of 39 columns. Both ways take turns; each counts with its fastest
round, since the machine's other work can only slow one down.

Categories are 8 hexadecimal digits, as Criteo states them, or integers. The latter are read at more than a million
samples a second, and server and proxy take cores then that the local reader has for itself. The row without a bar reads
shards of 32 batches in random order, where nothing says which comes next.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from stretto.readers.arrow import Arrow
from stretto.readers.criteo import CATEGORIES, INTEGERS
from stretto.readers.synthetic import Synthetic

from tests.bench.rows import Row, row

LATENCY_S = 0.02
FILES, ROWS, ROW_GROUP = 4, 50_000, 25_000
LINKS = 6
"""Each file stands there under so many names: enough rows that the first block counts for little."""
BATCH, SHARD = 512, 32 * 512
ROUNDS = 4
BAR = 0.9


def run() -> list[Row]:
    from object_store import environment_of, proxy_process, s3_server

    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("strings", "integers"):
            write(Path(folder) / "bench" / kind, kind)
        with s3_server(Path(folder)) as server, proxy_process(server, LATENCY_S) as port:
            os.environ.update(environment_of(port))
            try:
                cases = (("strings", True), ("integers", True), ("integers", False))
                return [measured(f"{folder}/bench/{kind}", f"s3://bench/{kind}", kind, order) for kind, order in cases]
            finally:
                os.environ.clear()
                os.environ.update(before)


def write(folder: Path, kind: str) -> None:
    """Write samples as Parquet files, their categories as strings or integers."""
    folder.mkdir(parents=True)
    generator = Synthetic(1, categories=200_000)
    for number in range(FILES):
        raw = generator.raw(number * ROWS, ROWS)
        columns = {"label": pa.array(raw.label)}
        for i, name in enumerate(INTEGERS):
            columns[name] = pa.array(raw.integers[:, i], mask=raw.integers_missing[:, i])
        for i, name in enumerate(CATEGORIES):
            codes = raw.codes[:, i].astype(np.int64)
            values = [f"{code:08x}" for code in codes.tolist()] if kind == "strings" else codes
            columns[name] = pa.array(values, mask=raw.codes_missing[:, i])
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=ROW_GROUP)
        for link in range(1, LINKS):
            os.link(path, folder / f"part-{link}{number:04d}.parquet")


def measured(local: str, remote: str, kind: str, in_order: bool) -> Row:
    """Return the row of reading everything both ways, in turns."""
    pairs = [(samples_per_s(local, in_order), samples_per_s(remote, in_order)) for _ in range(ROUNDS)]
    here, there = (max(rates) for rates in zip(*pairs, strict=True))
    ratios = sorted(far / near for near, far in pairs)
    median = statistics.median(ratios)
    note = f"fastest of {ROUNDS} rounds each; ratios of rounds {ratios[0]:.2f} to {ratios[-1]:.2f}, median {median:.2f}"
    name = (
        f"readers: Parquet from S3, 20 ms per request, {kind}, {'in order' if in_order else 'shards in random order'}"
    )
    bar, ok = (f">= {BAR:g} x local Parquet", there >= BAR * here) if in_order else ("", None)
    return row(name, there, "samples/s", bar, ok, note, here)


def samples_per_s(data: str, in_order: bool) -> float:
    """Read all samples with a new reader, and return the rate."""
    reader = Arrow(data)
    step = reader.size if in_order else SHARD
    begins = np.arange(0, reader.size, step)
    if not in_order:
        begins = np.random.default_rng(0).permutation(begins)
    begun_s = perf_counter()
    count = 0
    for begin in begins.tolist():
        stop = min(begin + step, reader.size)
        for start in range(begin, stop, BATCH):
            count += len(reader.read(start, min(BATCH, stop - start))["label"])
    assert count == reader.size
    return count / (perf_counter() - begun_s)

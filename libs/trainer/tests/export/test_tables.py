"""The rows of an export, with real servers, images and files, and without a framework."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from stretto.engine.layout import BUCKETS, SLICES, Layout, Table
from stretto.errors import CheckpointError, ExportRefused, ImageDamaged
from stretto.export import parquet
from stretto.export.checkpoint_source import Checkpoint, open_checkpoint
from stretto.export.tables import ExportedTable, KeyTable, all_rows, changes, tables_of
from stretto.export.target import Target
from stretto.model.program import EmbeddingRows
from stretto.readers.hashing import VALUE_BITS
from stretto_parameters import RowPolicy
from stretto_parameters.optimizers import Adagrad
from trained_server import TrainedServer

LAYOUT = Layout(
    (Table(4, Adagrad(0.1), seed=7), Table(3, Adagrad(0.1), seed=8, weights="bfloat16")), 200, BUCKETS, SLICES
)


class Job(TrainedServer):
    """A server of two tables, and the URLs of its checkpoints."""

    def __init__(self, folder: Path, layout: Layout = LAYOUT) -> None:
        super().__init__(folder, layout)

    def start(self) -> Job:
        self.worker.seed(np.arange(200, dtype=np.float32), np.zeros(0, np.float32))
        return self

    def url(self, name: str, base: str = "") -> str:
        """Take a checkpoint; return the URL of its manifest."""
        self.take(name, base=base)
        return f"file://{self.manifest(name)}"

    def pulled(self, *ids: np.ndarray) -> list[np.ndarray]:
        """Return what a worker gets for these ids."""
        keys = self.layout.index(*ids)
        rows = self.worker.pull(keys).rows
        return [of[at.inverse] for of, at in zip(rows, keys.tables, strict=True)]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path).start()
    yield made
    made.close()


def key_tables(checkpoint: Checkpoint) -> list[KeyTable]:
    return [KeyTable(f"rows_{number}", checkpoint, number) for number in range(len(checkpoint.layout.tables))]


def test_a_checkpoint_has_the_rows_that_workers_pull_through_a_chain_of_differences(job: Job) -> None:
    first, second = np.arange(3000), np.arange(2000, 5000) << 20
    job.train(first, second)
    job.url("c1")
    job.train(first[:500], second[:500])
    job.url("c2", "c1")
    job.train(first[400:800], second + 1)
    checkpoint = open_checkpoint(job.url("c3", "c2"))
    shutil.rmtree(job.folder / "job")  # as a job that trains removes its older ones
    assert (checkpoint.id, checkpoint.samples) == ("c3", 192)
    rows, halves = (all_rows(table) for table in key_tables(checkpoint))
    assert sorted(rows.keys.tolist()) == first.tolist()
    assert sorted(halves.keys.tolist()) == sorted([*second.tolist(), *(second + 1).tolist()])
    expected = job.pulled(rows.keys, halves.keys)
    assert (rows.weights == expected[0]).all()
    assert (halves.weights == expected[1]).all()
    dense, state = checkpoint.dense()
    assert (dense == job.worker.pull(job.layout.index(first[:0], second[:0])).dense).all()
    assert len(state) == 0


def test_keys_whose_rows_expired_are_named_as_gone(tmp_path: Path) -> None:
    """Three batches of 64 samples; after 64 without a change a row goes, from the chain of images, too."""
    job = Job(tmp_path, replace(LAYOUT, rows=RowPolicy(expire_samples=64))).start()
    keys = np.arange(900)
    job.train(keys, keys)
    before = open_checkpoint(job.url("c1"))
    for _ in range(2):
        job.train(keys[:300], keys[300:])
    checkpoint = open_checkpoint(job.url("c2", "c1"))
    for old, table, kept in zip(key_tables(before), key_tables(checkpoint), (keys[:300], keys[300:]), strict=True):
        assert sorted(all_rows(table).keys.tolist()) == kept.tolist()
        gone = [changes(table, bucket, old.rows(bucket)).gone for bucket in range(BUCKETS)]
        assert sorted(np.concatenate(gone).tolist()) == sorted({*keys.tolist()} - {*kept.tolist()})
        assert table.changed(3, frozenset(before.digests)) is None, "images do not say which rows went"
    job.close()


@dataclass
class Program:
    """Stands in for a user's model: what an export asks of it."""

    layout: Layout
    tables: dict[str, Any] = field(default_factory=dict)
    embeddings: tuple[EmbeddingRows, ...] = ()


def test_every_id_of_a_layer_has_a_row_trained_or_not(job: Job) -> None:
    """Two layers share a table: one is narrower, one adds its own initial values; a third has bfloat16."""
    initial = np.random.default_rng(1).normal(size=(900, 4)).astype(np.float32)
    layers = (
        EmbeddingRows("tower/users", 0, 3, 1000, 2),
        EmbeddingRows("items", 0, 4, 900, 4, initial),
        EmbeddingRows("cities", 1, 0, 70, 3),
    )
    users, items, cities = np.arange(0, 1000, 3), np.arange(5, 800), np.arange(50)
    keys = [np.concatenate([users | 3 << VALUE_BITS, items | 4 << VALUE_BITS]), cities]
    job.train(*keys)
    job.url("c1")
    job.train(keys[0][:40], keys[1])
    checkpoint = open_checkpoint(job.url("c2", "c1"))
    tables = tables_of(Program(job.layout, embeddings=layers), checkpoint)  # type: ignore[arg-type]
    assert [table.name for table in tables] == ["tower.users", "items", "cities"]
    found = [all_rows(table).weights for table in tables]
    ids = [np.arange(layer.ids) | layer.field << VALUE_BITS for layer in layers]
    wide, half = job.pulled(np.concatenate(ids[:2]), ids[2])
    assert (found[0] == wide[:1000, :2]).all()
    assert (found[1] == wide[1000:] + initial).all()
    assert (found[2] == half).all()


def test_a_model_other_than_the_one_that_was_trained_is_refused(job: Job) -> None:
    job.train(np.arange(10), np.arange(10))
    checkpoint = open_checkpoint(job.url("c1"))
    other = Layout((Table(4, Adagrad(0.1), seed=7), Table(5, Adagrad(0.1), seed=8)), 200, BUCKETS, SLICES)
    with pytest.raises(ExportRefused, match=r"floats per row are \[4, 5\] here and \[4, 3\] in checkpoint c1"):
        tables_of(Program(other), checkpoint)  # type: ignore[arg-type]


def test_other_initial_weights_than_those_that_were_trained_are_refused(job: Job) -> None:
    job.train(np.arange(10), np.arange(10))
    checkpoint = open_checkpoint(job.url("c1"))
    tables = job.layout.tables
    here, there = (replace(job.layout, tables=(replace(tables[0], base=of), *tables[1:])) for of in ("aa", "bb"))
    tables_of(Program(here), checkpoint)  # type: ignore[arg-type]  # the checkpoint has none
    with pytest.raises(ExportRefused, match=r"seed what build\(\) draws\) are \['aa'\] here and \['bb'\]"):
        tables_of(Program(here), cast("Any", SimpleNamespace(layout=there, id="c1")))


def test_a_damaged_image_and_one_that_is_gone_are_refused(job: Job) -> None:
    job.train(np.arange(4000), np.arange(10))
    url = job.url("c1")
    image = job.image("c1")
    data = bytearray(image.read_bytes())
    data[len(data) // 4] ^= 16
    image.write_bytes(data)
    with pytest.raises(ImageDamaged, match="checksum differs"):
        all_rows(key_tables(open_checkpoint(url))[0])
    image.unlink()
    with pytest.raises(CheckpointError, match="damaged or absent"):
        open_checkpoint(url)


def test_a_checkpoint_from_before_the_first_worker_is_refused(tmp_path: Path) -> None:
    made = Job(tmp_path)
    checkpoint = open_checkpoint(made.url("c1"))
    with pytest.raises(CheckpointError, match="initial values; take a later one"):
        checkpoint.dense()
    made.close()


# --- what changed ---------------------------------------------------------------------------------------------


def written(folder: Path, tables: list[KeyTable], earlier: parquet.Earlier | None = None) -> parquet.Earlier:
    """Write tables as the export does; return it opened."""
    from stretto.export.run import _change

    checkpoint = tables[0].checkpoint
    with Target(str(folder)) as target:
        for bucket in range(BUCKETS):
            for table in tables:
                change = _change(table, bucket, earlier)
                if len(change.rows.keys) or len(change.gone):
                    with target.writer(parquet.file_of(table.name, bucket)) as file:
                        parquet.write(file, table.key, change)
        since = None if earlier is None else earlier.reference
        about = {"id": checkpoint.id, "images": checkpoint.digests}
        target.publish({"job": "job", "format": "parquet", "since": since, "checkpoint": about})
    return parquet.open_earlier(str(folder), checkpoint)


def whole(export: parquet.Earlier, table: ExportedTable) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for bucket in range(BUCKETS):
        rows = export.rows(table.name, table.key, table.dimension, bucket)
        found |= dict(zip(rows.keys.tolist(), rows.weights.tolist(), strict=True))
    return found


def rows_in(folder: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in (folder / "tables").rglob("*.parquet"))


def test_changes_since_an_export_give_the_same_rows_as_a_full_one(job: Job, tmp_path: Path) -> None:
    """Goal: both ways to find changes, one after the other, and a base that is itself a difference.

    Method: c2 adds to c1, so that its images say what changed; c3 is full, as a job's last checkpoint is, so that rows
    are compared.
    """
    job.train(np.arange(3000), np.arange(1000))
    tables = key_tables(open_checkpoint(job.url("c1")))
    base = written(tmp_path / "e1", tables)
    assert rows_in(tmp_path / "e1") == 4000

    job.train(np.arange(100), np.arange(2000, 2010))
    tables = key_tables(open_checkpoint(job.url("c2", "c1")))
    assert tables[0].changed(5, base.images) is not None
    second = written(tmp_path / "e2", tables, base)
    assert rows_in(tmp_path / "e2") == 110
    for table in tables:
        assert whole(second, table) == whole(written(tmp_path / f"full2-{table.name}", tables), table)

    job.train(np.arange(50, 60), np.arange(3000, 3001))
    tables = key_tables(open_checkpoint(job.url("c3")))
    assert tables[0].changed(5, second.images) is None
    third = written(tmp_path / "e3", tables, second)
    assert rows_in(tmp_path / "e3") == 11
    for table in tables:
        assert whole(third, table) == whole(written(tmp_path / f"full3-{table.name}", tables), table)


def test_rows_that_are_gone_since_are_named(job: Job, tmp_path: Path) -> None:
    """A job that went back to a checkpoint may have fewer rows than an export of before."""
    job.train(np.arange(300), np.arange(10))
    early = job.url("c1")
    job.train(np.arange(300, 310), np.arange(10))
    base = written(tmp_path / "late", key_tables(open_checkpoint(job.url("c2"))))
    tables = key_tables(open_checkpoint(early))
    back = written(tmp_path / "back", tables, base)
    assert whole(back, tables[0]) == whole(written(tmp_path / "full", tables), tables[0])
    empty = [
        row
        for file in (tmp_path / "back/tables/rows_0").iterdir()
        for row in pq.read_table(file).to_pylist()
        if row["embedding"] is None
    ]
    assert sorted(row["key"] for row in empty) == [*range(300, 310)]


def test_an_export_that_cannot_be_added_to_is_refused(job: Job, tmp_path: Path) -> None:
    job.train(np.arange(30), np.arange(10))
    checkpoint = open_checkpoint(job.url("c1"))
    base = written(tmp_path / "e1", key_tables(checkpoint))
    written(tmp_path / "e2", key_tables(checkpoint), base)
    with pytest.raises(ExportRefused, match=r"is no complete export \(FileNotFoundError"):
        parquet.open_earlier(str(tmp_path / "nothing"), checkpoint)
    document = tmp_path / "e1" / "export.json"
    for field_, value, reason in (("job", "other", "is an export of job other"), ("format", "keras", "format keras")):
        changed = json.loads(document.read_text()) | {field_: value}
        with Target(str(tmp_path / f"other-{field_}")) as target:
            target.publish({name: changed[name] for name in ("job", "format", "since", "checkpoint")})
        with pytest.raises(ExportRefused, match=reason):
            parquet.open_earlier(str(tmp_path / f"other-{field_}"), checkpoint)
    document.write_text(document.read_text() + " ")
    with pytest.raises(ExportRefused, match="another export than the later one adds to"):
        parquet.open_earlier(str(tmp_path / "e2"), checkpoint)


def test_a_table_of_64_buckets_passes_through_the_memory_of_a_few(tmp_path: Path) -> None:
    """Goal: memory that depends on a bucket and not on the table.

    Method: another process writes the same table in full; its peak is compared with the table's bytes.
    """
    layout = Layout((Table(64, Adagrad(0.1)),), 200, BUCKETS, SLICES)
    job = Job(tmp_path, layout).start()
    count = 400_000
    for begin in range(0, count, 50_000):
        job.train(np.arange(begin, begin + 50_000))
    url = job.url("c1")
    job.close()
    table_bytes = 4 * 64 * count
    done = subprocess.run(
        [sys.executable, "-c", PEAK, url, str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert rows_in(tmp_path / "out") == count
    assert int(done.stdout) < table_bytes / 4


PEAK = """
import resource, sys
from stretto.engine.layout import BUCKETS
from stretto.export import parquet
from stretto.export.checkpoint_source import open_checkpoint
from stretto.export.tables import Change, KeyTable
from stretto.export.target import Target
import numpy as np

checkpoint = open_checkpoint(sys.argv[1])
table = KeyTable("rows", checkpoint, 0)

def write(target, buckets):
    for bucket in buckets:
        with target.writer(parquet.file_of("rows", bucket)) as file:
            parquet.write(file, "key", Change(table.rows(bucket), np.zeros(0, np.int64)))

with Target(sys.argv[2]) as target:
    write(target, [0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write(target, range(1, BUCKETS))
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
    target.publish({})
"""


# --- where it goes --------------------------------------------------------------------------------------------


def test_what_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with Target(str(tmp_path / "out")) as target, target.writer("a/b") as file:
            file.write(b"half")
            assert [each.name.rpartition(".")[2] for each in tmp_path.iterdir()] == ["part"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_an_export_arrives_whole_on_a_disk_and_in_a_store(tmp_path: Path, kind: str) -> None:
    import fsspec

    url = f"{kind}://{tmp_path}/out"
    with Target(url) as target:
        with target.writer("tables/a.bin") as file:
            file.write(b"one")
        with target.local("model") as path:
            (path / "inner").mkdir(parents=True)
            (path / "inner" / "x").write_bytes(b"two")
        document = target.publish({"job": "j"})
    store, path = fsspec.core.url_to_fs(url)
    assert json.loads(store.cat_file(f"{path}/export.json")) == document
    assert {name: entry["bytes"] for name, entry in document["files"].items()} == {
        "model/inner/x": 3,
        "tables/a.bin": 3,
    }
    assert store.cat_file(f"{path}/model/inner/x") == b"two"
    assert [name for name in store.find(str(tmp_path)) if ".part" in name] == []
    with pytest.raises(ExportRefused, match="exists already"):
        Target(url)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = Target(str(tmp_path / "file/out"))
    with pytest.raises(ExportRefused, match="cannot be written to"), target, target.writer("a") as file:
        file.write(b"x")
    with pytest.raises(ExportRefused, match="cannot be opened"):
        Target("nosuch://bucket/out")

"""Readers: random access equals sequential access, files equal what was written, bad lines are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from criteo_file import write_criteo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stretto import DataError, field_keys, hash_strings, hash_values
from stretto.examples import criteo
from stretto.model.evaluate import auc
from stretto.readers import Reader
from stretto.readers.arrow import Arrow
from stretto.readers.criteo import CATEGORIES, INTEGERS, Criteo
from stretto.readers.synthetic import Synthetic
from table_files import part, same

SAMPLES = 1500


@pytest.fixture(scope="module")
def generator() -> Synthetic:
    return Synthetic(7, categories=5000, new_categories=500, samples=SAMPLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, generator: Synthetic) -> Path:
    """The same samples as Criteo text, Parquet and Arrow."""
    path = tmp_path_factory.mktemp("data")
    write_criteo(generator, str(path / "day.tsv"), 0, SAMPLES)
    raw = generator.raw(0, SAMPLES)
    columns = {"label": pa.array(raw.label)}
    for i, name in enumerate(INTEGERS):
        columns[name] = pa.array(raw.integers[:, i], mask=raw.integers_missing[:, i])
    for i, name in enumerate(CATEGORIES):
        columns[name] = pa.array(raw.codes[:, i].astype(np.int64), mask=raw.codes_missing[:, i])
    table = pa.table(columns)
    pq.write_table(table, path / "day.parquet", row_group_size=190)
    with pa.ipc.new_file(str(path / "day.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=170)
    return path


@pytest.fixture(scope="module")
def readers(folder: Path, generator: Synthetic) -> dict[str, Reader]:
    return {
        "synthetic": generator,
        "criteo": Criteo(str(folder / "day.tsv")),
        "parquet": Arrow(str(folder / "day.parquet"), log_dense=True),
        "arrow": Arrow(str(folder / "day.arrow"), log_dense=True),
    }


ranges = st.integers(0, SAMPLES).flatmap(lambda start: st.tuples(st.just(start), st.integers(0, SAMPLES - start)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=ranges, name=st.sampled_from(["synthetic", "criteo", "parquet", "arrow"]))
def test_any_range_equals_that_part_of_a_sequential_read(readers: dict[str, Reader], where: tuple[int, int], name: str):
    whole = readers["synthetic"].read(0, SAMPLES)
    start, length = where
    assert same(readers[name].read(start, length), part(whole, start, length))


@pytest.mark.parametrize("name", ["criteo", "parquet", "arrow"])
@pytest.mark.parametrize(("start", "length"), [(-1, 5), (SAMPLES, 1), (SAMPLES - 3, 4)])
def test_samples_that_do_not_exist_are_refused(readers: dict[str, Reader], name: str, start: int, length: int):
    with pytest.raises(DataError, match=rf"{SAMPLES} samples"):
        readers[name].read(start, length)


# --- the generator -------------------------------------------------------------------------------------------


def test_another_seed_is_another_function():
    a, b = Synthetic(1).read(0, 1000), Synthetic(2).read(0, 1000)
    assert not np.array_equal(a["categorical"], b["categorical"])
    assert same(a, Synthetic(1).read(0, 1000))


@pytest.mark.parametrize("seed", range(6))
def test_labels_can_be_learnt_and_are_balanced_whatever_the_seed(seed: int):
    source = Synthetic(seed, categories=5000)
    raw, logit = source._samples(10_000, 20_000)
    assert 0.15 < raw.label.mean() < 0.5
    assert auc(raw.label, logit) > 0.8  # the best that any model can reach


def test_categories_are_zipf_and_new_ones_keep_coming():
    source = Synthetic(3, categories=20_000, new_categories=30_000, samples=60_000)
    ids = source.read(0, 60_000)["categorical"]
    biggest = ids[:20_000, 25]
    counts = np.sort(np.unique(biggest, return_counts=True)[1])[::-1]
    assert counts[0] > 10 * counts[50]  # a head
    assert (counts == 1).sum() > 200  # and a tail

    def distinct(stop: int) -> int:
        return sum(len(np.unique(ids[:stop, field])) for field in range(26))

    late = distinct(60_000) - distinct(40_000)
    assert 0.8 * 10_000 < late < 1.4 * 10_000  # 0.5 new ones a sample, plus the rest of the tail
    steady = Synthetic(3, categories=20_000).read(40_000, 20_000)["categorical"]
    assert sum(len(np.unique(steady[:, f])) for f in range(26)) < 20_000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"categories": 10}, "categories = 10"),
        ({"new_categories": -1}, "new_categories"),
        ({"new_categories": 10**8}, "at most"),
    ],
)
def test_data_that_cannot_be_is_refused(wrong: dict[str, int], named: str):
    with pytest.raises(DataError, match=named):
        Synthetic(0, **wrong)


# --- Criteo text ---------------------------------------------------------------------------------------------

cell_integer = st.one_of(st.just(""), st.integers(-3, 10**6).map(str))
cell_category = st.one_of(st.just(""), st.integers(0, 2**32 - 1).map(lambda v: f"{v:08x}"))
line = st.tuples(
    st.sampled_from(["0", "1"]),
    st.lists(cell_integer, min_size=13, max_size=13),
    st.lists(cell_category, min_size=26, max_size=26),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(line, min_size=1, max_size=20), newline=st.booleans())
def test_every_cell_comes_out_as_it_went_in(tmp_path: Path, lines: list, newline: bool):
    path = tmp_path / "few.tsv"
    text = "\n".join("\t".join((label, *integers, *categories)) for label, integers, categories in lines)
    path.write_text(text + ("\n" if newline else ""))
    reader = Criteo(str(path))
    assert reader.size == len(lines)
    batch = reader.read(0, len(lines))
    for row, (label, integers, categories) in enumerate(lines):
        assert batch["label"][row] == int(label)
        for column, cell in enumerate(integers):
            assert batch["numeric"][row, column] == np.log1p(np.float32(max(0, int(cell or 0))))
        assert batch["categorical"][row].tolist() == [int(cell, 16) + 1 if cell else 0 for cell in categories]


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        (0, "2", "label = '2', expected 0 or 1"),
        (0, "", "label = '', expected 0 or 1"),
        (5, "x7", "I5 = 'x7', expected an integer"),
        (14, "zz", "C1 = 'zz', expected at most 8 hexadecimal"),
        (39, "123456789", "C26 = '123456789', expected at most 8"),
        (39, None, "39 columns, expected 40"),
        (3, "1\t2", "41 columns, expected 40"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(
    folder: Path, tmp_path: Path, column: int, cell: str | None, expected: str
):
    lines = (folder / "day.tsv").read_text().splitlines()
    cells = lines[700].split("\t")
    lines[700] = "\t".join(cells[:column] if cell is None else [*cells[:column], cell, *cells[column + 1 :]])
    path = tmp_path / "bad.tsv"
    path.write_text("\n".join(lines) + "\n")
    reader = Criteo(str(path))
    with pytest.raises(DataError) as refused:
        reader.read(650, 100)
    assert f"{path}, line 701: {expected}" in str(refused.value)
    reader.read(0, 700)
    reader.read(701, 100)


def test_the_line_index_is_kept_and_made_again_when_the_file_changes(folder: Path, tmp_path: Path):
    path = tmp_path / "day.tsv"
    lines = (folder / "day.tsv").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:600]))
    assert Criteo(str(path)).size == 600
    kept = Path(f"{path}.index.npy")
    assert kept.exists()
    path.write_text("".join(lines))
    assert Criteo(str(path)).size == SAMPLES
    kept.write_bytes(kept.read_bytes()[:60])  # cut off in the middle
    assert same(Criteo(str(path)).read(600, 300), Criteo(str(folder / "day.tsv")).read(600, 300))


def test_files_that_are_no_data_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be read"):
        Criteo(str(tmp_path / "none.tsv"))
    (tmp_path / "day.gz").write_bytes(b"\x1f\x8b\x08\x00rest")
    with pytest.raises(DataError, match="compressed"):
        Criteo(str(tmp_path / "day.gz"))
    (tmp_path / "text.parquet").write_text("no parquet at all")
    with pytest.raises(DataError, match="neither a Parquet nor an Arrow"):
        Arrow(str(tmp_path / "text.parquet"))


# --- Arrow ---------------------------------------------------------------------------------------------------


def arrow_file(tmp_path: Path, **columns: object) -> str:
    path = tmp_path / "small.parquet"
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_strings_and_dictionaries_are_categories(tmp_path: Path):
    words = pa.array(["a", "b", None, "a"])
    path = arrow_file(tmp_path, label=[0, 1, 0, 1], x=[1.0, 2.0, None, 4.0], c=words, d=words.dictionary_encode())
    batch = Arrow(path, dense=["x"], categorical=["c", "d"]).read(0, 4)
    assert batch["numeric"][:, 0].tolist() == [1.0, 2.0, 0.0, 4.0]
    assert batch["categorical"][2].tolist() == [0, 0]
    assert batch["categorical"][0, 0] == batch["categorical"][3, 0] == batch["categorical"][3, 1] != 0


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"label": [0, 2], "x": [1.0, 2.0]}, "row 1: label = 2"),
        ({"label": [0, None], "x": [1.0, 2.0]}, "row 1: label is missing"),
        ({"label": [0, 1], "x": [1.0, float("inf")]}, "row 1: x = inf"),
        ({"label": [0, 1], "x": ["a", "b"]}, "row 0: x = 'a', expected a finite number"),
        ({"label": [0, 1]}, "no column 'x'"),
    ],
)
def test_bad_values_are_named_by_row_and_column(tmp_path: Path, columns: dict[str, list], named: str):
    with pytest.raises(DataError, match=named):
        Arrow(arrow_file(tmp_path, **columns), dense=["x"], categorical=[]).read(0, 2)


# --- keys ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 2**48 - 1), min_size=3, max_size=3),
    st.lists(st.integers(0, 2**48 - 1), min_size=3, max_size=3),
)
def test_keys_differ_by_value_and_by_field(a: list[int], b: list[int]):
    keys = field_keys(np.array([a, b]))
    for i in range(3):
        for j in range(3):
            assert (keys[0, i] == keys[1, j]) == (i == j and a[i] == b[j])


def test_keys_refuse_what_would_collide():
    with pytest.raises(DataError, match="hash_values"):
        field_keys(np.array([[1, 2**48]]))
    with pytest.raises(DataError, match="hash_values"):
        field_keys(np.array([[1, -1]]))
    with pytest.raises(DataError, match="shape"):
        field_keys(np.arange(3))
    hashed = hash_values(np.array([[1, -1, 2**62]]))
    assert len(set(field_keys(hashed)[0].tolist())) == 3


def test_hashes_are_the_same_on_every_machine():
    assert hash_strings(["shoes", None, b"shoes"]).tolist() == [81638987045253, 0, 81638987045253]
    # the first output of SplitMix64 with seed 0, as published with it
    assert hash_values(np.array([0])).tolist() == [0xE220A8397B1DCDAF >> 16]


def test_an_example_reads_no_faster_than_its_store_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(criteo.time, "sleep", slept.append)
    batch = criteo.CriteoTask(categories=1000, samples_per_s=0.5).read(0, 50)
    assert len(batch["label"]) == 50
    assert 0 < slept.pop() <= 100
    criteo.CriteoTask(categories=1000).read(0, 50)
    assert slept == [0.0]
    store = tmp_path / "store"
    task = criteo.CriteoTask(categories=1000, samples_per_s_file=str(store))
    for told, least_s in (("0.5", 90.0), ("0", 0.0)):
        store.write_text(told)
        task.read(0, 50)
        assert slept.pop() >= least_s
    store.write_text("fast")
    with pytest.raises(DataError, match="one number"):
        task.read(0, 50)
    with pytest.raises(DataError, match="samples_per_s = -1"):
        criteo.CriteoTask(samples_per_s=-1)

"""Tables of every format: any read equals that part of the whole, however files are cut; bad rows are named."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto import DataError, field_keys, hash_strings
from stretto.readers import Batch
from stretto.readers import formats as formats_module
from stretto.readers import index as index_module
from stretto.readers.arrow import Arrow
from table_files import COLUMNS, FORMATS, part, rows_of, same, write


def expected(rows: list[dict[str, Any]]) -> Batch:
    """The batch of rows, in plain Python."""
    user = [_integer(row["user"]) for row in rows]
    tags = [[*hash_strings([*row["tags"], *[None] * 3])[:3]] if row["tags"] else [0, 0, 0] for row in rows]
    city = hash_strings([row["city"] for row in rows])
    return {
        "label": np.array([row["clicked"] for row in rows], np.float32),
        "numeric": np.array([[row["age"] or 0, row["price"]] for row in rows], np.float32).reshape(-1, 2),
        "categorical": np.stack([np.array(user, np.int64).reshape(-1), city], axis=1),
        "tags": np.array(tags, np.int64).reshape(-1, 3),
        "weight": np.array([row["w"] for row in rows], np.float32),
    }


def _integer(value: int | None) -> int:
    if value is None:
        return 0
    if 0 <= value < 2**48 - 1:
        return value + 1
    from stretto import hash_values

    return int(max(1, hash_values(np.array([value]))[0]))


@settings(max_examples=40)
@given(data=st.data(), kind=st.sampled_from(FORMATS))
def test_any_read_equals_that_part_of_the_whole_however_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(any))
    piece = data.draw(st.integers(1, 40))
    rows: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        some = rows_of(size, seed=number)
        write(folder / f"part-{number}.{kind}", kind, some, piece)
        rows += some
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stretto.readers.arrow._BLOCK_BYTES", data.draw(st.integers(1, 5000)))
        reader = Arrow(str(folder), **COLUMNS, memory_bytes=data.draw(st.integers(1, 20_000)))
        assert reader.size == len(rows)
        whole = expected(rows)
        for _ in range(4):
            start = data.draw(st.integers(0, len(rows)))
            length = data.draw(st.integers(0, len(rows) - start))
            assert same(reader.read(start, length), part(whole, start, length))


def test_reading_tables_loads_no_framework_and_no_pandas(tmp_path: Path) -> None:
    """A data worker's lane would have them for nothing. Data in folders, several files with missing cells, a split."""
    for day in ("1", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"day={day}").mkdir()
        write(tmp_path / f"day={day}" / "few.parquet", "parquet", rows_of(10))
    split = {"categorical": ["day", *COLUMNS["categorical"]], "timestamp": "price", "train_before": 0.0}
    assert Arrow(str(tmp_path), **COLUMNS | split).size == 20  # who counts the rows keeps an index, by pandas
    program = (
        "import sys; from stretto.readers.arrow import Arrow; "
        f"Arrow({str(tmp_path)!r}, **{COLUMNS | split}).read(0, 20); "
        "assert not {'tensorflow', 'keras', 'torch', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- files ---------------------------------------------------------------------------------------------------


def small(path: Path, first: int, rows: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"label": [0] * rows, "x": [float(first + i) for i in range(rows)]}), path)


def numbers(reader: Arrow) -> list[float]:
    return reader.read(0, reader.size)["numeric"][:, 0].tolist()


def test_the_order_of_files_is_that_of_the_list_and_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, first in (("b", 10), ("a", 0), ("B", 20), ("c/a", 30), ("_temporary/x", 99), (".hidden", 99)):
        small(tmp_path / f"{name}.parquet", first, rows=1)
    (tmp_path / "_SUCCESS").write_text("")
    columns: dict[str, Any] = {"dense": ["x"], "categorical": []}
    assert numbers(Arrow(str(tmp_path), **columns)) == [20, 0, 10, 30]
    assert numbers(Arrow([str(tmp_path / "b.parquet"), str(tmp_path / "a.parquet")], **columns)) == [10, 0]
    assert numbers(Arrow(str(tmp_path / "*.parquet"), **columns)) == [20, 0, 10]
    assert numbers(Arrow(str(tmp_path / "**/a.parquet"), **columns)) == [0, 30]
    assert numbers(Arrow(str(tmp_path / "[ab].parquet"), **columns)) == [0, 10]
    small(tmp_path / "d/[ab].parquet", 40, rows=1)
    assert numbers(Arrow(tmp_path / "d/[ab].parquet", **columns)) == [40]
    (tmp_path / "d/[ab].parquet").unlink()
    monkeypatch.chdir(tmp_path)
    assert numbers(Arrow("*.parquet", **columns)) == [20, 0, 10]
    assert numbers(Arrow(".", **columns)) == [20, 0, 10, 30]


def test_folders_of_partitions_are_columns(tmp_path: Path) -> None:
    for day in (1, 2):
        small(tmp_path / f"day={day}/country=d%20e/part.parquet", 10 * day, rows=2)
    reader = Arrow(str(tmp_path), dense=["x", "day"], categorical=["day", "country"])
    batch = reader.read(0, 4)
    assert batch["numeric"].tolist() == [[10, 1], [11, 1], [20, 2], [21, 2]]
    assert batch["categorical"][:, 0].tolist() == [2, 2, 3, 3]
    assert batch["categorical"][:, 1].tolist() == hash_strings(["d e"] * 4).tolist()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.parquet", "no such file, folder"),
        ("*.parquet", "matches no file"),
        ("empty", "no data file"),
        ("ftp://host/x", "ftp:// is unknown; expected one of file, s3"),
        ("data.parquet.gz", "stretto data convert"),
        ("notes.txt", "neither a Parquet nor an Arrow IPC file.*others, name those by a pattern"),
        ("none/[a].parquet", "matches no file"),
        ("unfinished", "x.parquet is neither a Parquet.*cut off.*0 bytes"),
        ("pipe.parquet", "no file and no folder but a pipe or device"),
        ("nul\0", "give a path, a URL"),
    ],
)
def test_data_that_cannot_be_found_are_refused_with_the_remedy(tmp_path: Path, name: str, told: str) -> None:
    for folder in ("empty", "unfinished"):
        (tmp_path / folder).mkdir()
    (tmp_path / "unfinished/x.parquet").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "data.parquet.gz").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("some notes")
    with pytest.raises(DataError, match=told.replace("(", r"\(")):
        Arrow(name if "://" in name else str(tmp_path / name))


def test_an_absent_column_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    for kind in FORMATS:
        write(tmp_path / f"day.{kind}", kind, rows_of(200))
        with pytest.raises(DataError, match=f"day.{kind} has no column 'cty'; did you mean 'city'"):
            Arrow(str(tmp_path / f"day.{kind}"), label="clicked", dense=["age"], categorical=["cty"])


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        small(tmp_path / f"{number}.parquet", 0)
    reader = Arrow(str(tmp_path), dense=["x"], categorical=[])
    reader._open_files.clear()  # as after 128 other files
    small(tmp_path / "2.parquet", 0, rows=5)
    with pytest.raises(DataError, match=r"2.parquet has changed since its rows were counted"):
        reader.read(8, 4)


# --- the index -----------------------------------------------------------------------------------------------


def test_the_index_of_many_files_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        small(tmp_path / f"part-{number:02d}.parquet", 4 * number)
    opened: list[str] = []
    real = formats_module.open_format
    monkeypatch.setattr("stretto.readers.arrow.open_format", lambda f, *a: opened.append(f.name) or real(f, *a))
    columns: dict[str, Any] = {"dense": ["x"], "categorical": []}
    assert numbers(Arrow(str(tmp_path), **columns)) == list(range(80))
    assert len(list(tmp_path.glob("_stretto_index_*"))) == 1
    opened.clear()
    reader = Arrow(str(tmp_path), **columns)
    assert reader.size == 80
    assert opened == [str(tmp_path / "part-00.parquet")]  # to check the columns
    small(tmp_path / "part-20.parquet", 80)
    opened.clear()
    assert numbers(Arrow(str(tmp_path), **columns))[-4:] == [80, 81, 82, 83]
    opened.clear()
    small(tmp_path / "part-07.parquet", 0, rows=9)
    assert Arrow(str(tmp_path), **columns).size == 89
    assert set(opened) == {str(tmp_path / "part-00.parquet"), str(tmp_path / "part-07.parquet")}


def test_a_named_index_keeps_the_numbers_of_samples(tmp_path: Path) -> None:
    data, index = tmp_path / "data", tmp_path / "clicks.index"
    for number in (1, 2):
        small(data / f"{number}.parquet", 4 * number)
    columns: dict[str, Any] = {"dense": ["x"], "categorical": [], "index": str(index)}
    assert Arrow(str(data), **columns).size == 8
    small(data / "3.parquet", 12)  # behind those of the index: their numbers stay
    assert Arrow(str(data), **columns).size == 12
    small(data / "0.parquet", 0)
    with pytest.raises(DataError, match=r"0.parquet is new and comes before files of the index; .* delete it"):
        Arrow(str(data), **columns)
    (data / "0.parquet").unlink()
    small(data / "2.parquet", 8, rows=5)
    with pytest.raises(DataError, match=r"2.parquet has changed since the index was made"):
        Arrow(str(data), **columns)
    (data / "2.parquet").unlink()
    with pytest.raises(DataError, match=r"2.parquet is in the index and no longer in the data"):
        Arrow(str(data), **columns)
    index.write_text("something else")
    with pytest.raises(DataError, match=r"clicks\.index cannot be used"):
        Arrow(str(data), **columns)


def test_the_command_makes_the_index_before_a_job(tmp_path: Path) -> None:
    for number in range(3):
        small(tmp_path / f"data/day={number}/x.parquet", 0)
    command = [sys.executable, "-m", "stretto.readers", str(tmp_path / "data"), "--index", str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "12 samples in 3 files (3 pieces)\ncolumns: label, x, day\n"
    assert Arrow(str(tmp_path / "data"), dense=["x"], categorical=[], index=str(tmp_path / "index")).size == 12
    done = subprocess.run([*command[:-3], str(tmp_path / "none")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no such file" in done.stderr


def test_a_read_only_folder_has_its_index_in_scratch_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data/day.parquet", "parquet", rows_of(10))
    monkeypatch.setattr(index_module, "FILES_WITHOUT_INDEX", 0)
    real = index_module._write

    def refuse(store: Any, path: str, content: bytes) -> None:
        if path.startswith(str(tmp_path / "data")):
            raise PermissionError("read-only")
        real(store, path, content)

    monkeypatch.setattr(index_module, "_write", refuse)
    monkeypatch.setenv("STRETTO_POD_FOLDER", str(tmp_path / "pod"))
    assert Arrow(str(tmp_path / "data"), label="clicked", dense=[], categorical=[]).size == 10
    assert len(list((tmp_path / "pod").rglob("_stretto_index_*"))) == 1
    assert list((tmp_path / "data").iterdir()) == [tmp_path / "data/day.parquet"]


# --- columns -------------------------------------------------------------------------------------------------


def test_log_dense_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    small(tmp_path / "x.parquet", 3)
    assert numbers(Arrow(str(tmp_path), dense=["x"], categorical=[])) == [3, 4, 5, 6]
    assert (
        numbers(Arrow(str(tmp_path), dense=["x"], categorical=[], log_dense=True))
        == np.log1p(np.arange(3, 7, dtype=np.float32)).tolist()
    )


def test_other_columns_and_any_label_come_by_name(tmp_path: Path) -> None:
    table = pa.table({"y": [1.5, -2.0], "age": [30, None], "city": ["Ulm", None], "score": [0.5, 1.0]})
    pq.write_table(table, tmp_path / "x.parquet")
    reader = Arrow(str(tmp_path), label="y", is_binary=False, dense=[], categorical=[], others=["age", "city", "score"])
    batch = reader.read(0, 2)
    assert batch["label"].tolist() == [1.5, -2.0]
    assert batch["age"].tolist() == [30, 0]
    assert batch["city"].tolist() == ["Ulm", ""]
    assert batch["score"].dtype == np.float32


def test_lists_share_the_rows_of_one_field(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0, 1], "tags": [[7, 8], [8]]}), tmp_path / "x.parquet")
    batch = Arrow(str(tmp_path), dense=[], categorical=[], lists={"tags": 3}).read(0, 2)
    assert batch["tags"].tolist() == [[8, 9, 0], [9, 0, 0]]
    keys = field_keys(batch["tags"], field=5)
    assert keys[0, 1] == keys[1, 0] == field_keys(np.array([[0] * 5 + [9]]))[0, 5]


TIMES = [datetime(2026, 11, day, tzinfo=UTC) for day in (3, 1, 4, 2, 5)]


@pytest.mark.parametrize(
    ("times", "before", "after"),
    [
        (TIMES, "2026-11-03", "2026-11-04"),
        ([time.isoformat() for time in TIMES], datetime(2026, 11, 3, tzinfo=UTC), datetime(2026, 11, 4, tzinfo=UTC)),
        ([time.date() for time in TIMES], "2026-11-03", "2026-11-04T00:00:00Z"),
        ([3, 1, 4, 2, 5], 3, 4),
    ],
)
def test_a_split_by_time_puts_what_is_evaluated_behind_what_trains(
    tmp_path: Path, times: list[Any], before: Any, after: Any
) -> None:
    for number in range(20):
        table = pa.table({"label": [0] * 5, "x": [number + 0.1 * i for i in range(5)], "at": times})
        pq.write_table(table, tmp_path / f"{number:02d}.parquet", row_group_size=2)
    for _ in range(2):  # the second reader has the counts from the index
        reader = Arrow(
            str(tmp_path), dense=["x"], categorical=[], timestamp="at", train_before=before, evaluate_from=after
        )
        assert (reader.train_samples, reader.size) == (40, 80)
        found = np.round(10 * (numbers_of := reader.read(0, 80)["numeric"][:, 0]) % 10).astype(int)
        assert found.tolist() == [1, 3] * 20 + [2, 4] * 20
        assert np.floor(numbers_of[38:42]).tolist() == [19, 19, 0, 0]
        assert same(reader.read(39, 3), part(reader.read(0, 80), 39, 3))


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ({"timestamp": "at"}, "at least one time"),
        ({"train_before": "2026-01-01"}, "needs the column"),
        ({"timestamp": "x", "train_before": "yesterday"}, "expected a date or time as in"),
        ({"timestamp": "x", "train_before": "2026-01-02", "evaluate_from": "2026-01-01"}, "rows would be in both"),
        ({"timestamp": "x", "train_before": "2026-01-02", "evaluate_from": 3}, "do not compare"),
        ({"timestamp": "x", "train_before": "2026-01-02"}, "state the limit as a number"),
    ],
)
def test_a_split_that_cannot_be_is_refused(tmp_path: Path, split: dict[str, Any], told: str) -> None:
    small(tmp_path / "x.parquet", 0)
    with pytest.raises(DataError, match=told):
        Arrow(str(tmp_path), dense=["x"], categorical=[], **split)


# --- bad rows ------------------------------------------------------------------------------------------------


def spoilt(tmp_path: Path, kind: str) -> tuple[str, list[dict[str, Any]]]:
    """Write 12 rows of which 0, 5 and 6 are bad; return the path and the rows."""
    rows = rows_of(12)
    bad: list[dict[str, Any]] = [dict(row) for row in rows]
    bad[0]["clicked"] = 7
    bad[5]["price"] = float("inf")
    bad[6]["w"] = -1.0
    write(tmp_path / f"bad.{kind}", kind, bad)
    return str(tmp_path / f"bad.{kind}"), rows


@pytest.mark.parametrize("kind", FORMATS)
def test_a_bad_row_is_named_and_others_are_read(tmp_path: Path, kind: str) -> None:
    path, rows = spoilt(tmp_path, kind)
    reader = Arrow(path, **COLUMNS)
    for start, told in ((0, "clicked = 7, expected 0 or 1"), (5, "price = inf, expected a finite"), (6, "w = -1")):
        with pytest.raises(DataError, match=rf"bad\.{kind}, row {start}: {told}.*bad_rows_max=N"):
            reader.read(start, 1)
    whole = expected(rows)
    assert same(reader.read(1, 4), part(whole, 1, 4))
    assert same(reader.read(7, 5), part(whole, 7, 5))


@pytest.mark.parametrize("kind", FORMATS)
def test_bad_rows_are_replaced_up_to_a_number_and_samples_keep_theirs(tmp_path: Path, kind: str) -> None:
    path, rows = spoilt(tmp_path, kind)
    reader = Arrow(path, **COLUMNS, bad_rows_max=3)
    stand_ins = [rows[1], *rows[1:5], rows[4], rows[4], *rows[7:]]
    wanted = expected(stand_ins)
    wanted["weight"][[0, 5, 6]] = 0
    assert same(reader.read(0, 12), wanted)
    assert same(reader.read(5, 2), part(wanted, 5, 2))  # the same rows again are no new ones
    with pytest.raises(DataError, match=r"row 6: w = -1.*it is bad row number 3 of this process, and bad_rows_max = 2"):
        Arrow(path, **COLUMNS, bad_rows_max=2).read(0, 12)


def test_data_that_are_bad_throughout_are_refused_whatever_the_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [3, 4]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="no row of its block is good"):
        Arrow(str(tmp_path), dense=[], categorical=[], bad_rows_max=10).read(0, 2)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["Ulm", None], pa.string_view()), [*hash_strings(["Ulm"]).tolist(), 0]),
        (pa.array([7.0, None]), [8, 0]),  # as pandas writes integers with gaps
        (pa.array([Decimal("7"), None]), [8, 0]),
        (pa.array([date(1970, 1, 3), None]), [3, 0]),
        (pa.array([True, None]), [2, 0]),
        (pa.array(["a", None]).dictionary_encode(), [*hash_strings(["a"]).tolist(), 0]),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])), [*hash_strings(["a"]).tolist(), 0]),
        (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([7, None])), [8, 0]),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["a", None])), [*hash_strings(["a"]).tolist(), 0]),
        (pa.array([Decimal(2**53), Decimal(2**53 + 1)]), [_integer(2**53), _integer(2**53 + 1)]),
        (pa.array([Decimal("1.0"), None], pa.decimal32(3, 1)), [2, 0]),
    ],
)
def test_a_category_is_what_it_is_in_whatever_form_it_is_written(
    tmp_path: Path, column: pa.Array, expected: list[int]
) -> None:
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), pa.schema([("label", pa.int64()), ("c", column.type)])) as writer:
        writer.write_table(pa.table({"label": [0, 1], "c": column}))
    batch = Arrow(str(tmp_path), dense=[], categorical=["c"], lists={}).read(0, 2)
    assert batch["categorical"][:, 0].tolist() == expected


def test_vectors_are_read_and_lists_of_views_are_lists(tmp_path: Path) -> None:
    ids = pa.array([[7], [7, 8]], pa.list_view(pa.int64()))
    columns = {"label": [0, 1], "v": [[1.0, 2.0], [3.0, None]], "ids": ids}
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    batch = Arrow(str(tmp_path), dense=[], categorical=[], lists={"ids": 2}, others=["v"]).read(0, 2)
    assert batch["v"].tolist() == [[1, 2], [3, 0]]
    assert batch["ids"].tolist() == [[8, 0], [8, 9]]


@pytest.mark.parametrize(
    ("columns", "asked", "told"),
    [
        ({"c": [0.5, 1.0]}, {"categorical": ["c"]}, "row 0: c = 0.5, expected a category that is whole or text"),
        ({"c": [[1.0], [1.0, 0.5]]}, {"lists": {"c": 1}}, "row 1: c = 0.5, expected a category that is whole or text"),
        (
            {"c": [1.0, 2.0**60]},
            {"categorical": ["c"]},
            "row 1: c = .*, expected a category that its type holds to the",
        ),
        (
            {"c": [Decimal(1), Decimal(10**30)]},
            {"categorical": ["c"]},
            "row 1: c = 1e.30, expected a category that its",
        ),
        ({"c": [1.0, 1e300]}, {"dense": ["c"]}, "row 1: c = 1e.300, expected a finite number"),
        ({"c": [1.0, float("nan")]}, {"others": ["c"]}, "row 1: c = nan, expected a finite number"),
        ({"c": [[1.0], [float("inf")]]}, {"others": ["c"]}, "row 1: c = inf, expected a finite number"),
        ({"c": pa.array([1, 2**64 - 1], pa.uint64())}, {"others": ["c"]}, r"row 1: c = .*, expected an integer below"),
        ({"c": [{"a": 1}, None]}, {"dense": ["c"]}, "'c' has type struct.*; write its fields as columns of their own"),
        ({"c": [date(2026, 1, 1), None]}, {"dense": ["c"]}, "'c' has type date32.*; write a number of a unit"),
        ({"c": [[[1]], None]}, {"lists": {"c": 1}}, "column 'c' has type list.*lists of ids are read by lists="),
        ({"c": [None, None]}, {"others": ["c"]}, "'c' has type null.*it has no value: leave it out"),
        (
            {"v": [[1.0], [1.0, 2.0]]},
            {"others": ["v"]},
            "row 1: v = .*, expected a vector of 1 number, as most rows have; pad it",
        ),
        ({"t": [b"a", b"\xff"]}, {"others": ["t"]}, r"row 1: t = b'.xff', expected text in UTF-8; its bytes are none"),
        ({"t": [b"1", b"\xff"]}, {"dense": ["t"]}, r"row 1: t = b'.xff', expected text in UTF-8; its bytes are none"),
    ],
)
def test_a_cell_that_stands_for_nothing_is_refused(
    tmp_path: Path, columns: dict[str, Any], asked: dict[str, Any], told: str
) -> None:
    pq.write_table(pa.table({"label": [0, 1], **columns}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=rf"x\.parquet.*{told}"):
        Arrow(str(tmp_path), **{"dense": [], "categorical": [], **asked}).read(0, 2)


@pytest.mark.parametrize(
    ("asked", "first", "second", "told"),
    [
        ({"categorical": ["c"]}, [7], ["7"], "column 'c' has text, and integers in|has integers, and text in"),
        ({"lists": {"c": 1}}, [[7]], [["7"]], "column 'c' has text, and integers in|has integers, and text in"),
        ({"categorical": ["c"]}, [7], [date(1970, 1, 8)], "dates.*write one type in all files"),
        ({"others": ["c"]}, [7], [7.5], "floats.*write one type in all files"),
        ({"categorical": ["c"]}, [7], [7.0], None),  # as pandas writes a part with gaps
        ({"categorical": ["c"]}, [None], ["7"], None),
        ({"lists": {"c": 2}}, [7], [[7, 8]], None),
    ],
)
def test_files_that_drift_are_read_or_refused(
    tmp_path: Path, asked: dict[str, Any], first: list[Any], second: list[Any], told: str | None
) -> None:
    for name, cells in (("a", first), ("b", second)):
        pq.write_table(pa.table({"label": [0], "c": cells}), tmp_path / f"{name}.parquet")
    arguments: dict[str, Any] = {"dense": [], "categorical": [], **asked}
    if told is None:
        assert Arrow(str(tmp_path), **arguments).size == 2
        return
    with pytest.raises(DataError, match=told):
        Arrow(str(tmp_path), **arguments)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"dense": "x"}, r"dense = 'x': expected a list of columns, as in \['x'\]"),
        ({"lists": {"x": 0}}, "lists: x = 0, expected the number of items"),
        ({"others": ["numeric"]}, "others: a batch has another array 'numeric'; rename"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(tmp_path: Path, asked: dict[str, Any], told: str) -> None:
    small(tmp_path / "x.parquet", 0)
    with pytest.raises(DataError, match=told):
        Arrow(tmp_path / "x.parquet", **{"dense": [], "categorical": [], **asked})


def test_a_damaged_file_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    """Offsets of text that lead anywhere ended the process; text that is none was an error of Python's."""
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), pa.schema([("label", pa.int64()), ("c", pa.string())])) as writer:
        writer.write_table(pa.table({"label": [0] * 99, "c": ["abc"] * 99}))
    whole = (tmp_path / "x.arrow").read_bytes()
    texts = whole.index(b"abc" * 99)
    for place, told in ((texts - 200, "Offset"), (texts, "UTF8")):
        (tmp_path / "x.arrow").write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        with pytest.raises(DataError, match=rf"x\.arrow: column 'c': .*{told}.*damaged"):
            Arrow(str(tmp_path), dense=[], categorical=["c"]).read(0, 99)


def test_a_file_that_links_reach_twice_counts_once_or_not_at_all(tmp_path: Path) -> None:
    small(tmp_path / "day/x.parquet", 0)
    (tmp_path / "day/again").symlink_to(tmp_path / "day")
    with pytest.raises(
        DataError, match=r"again/x\.parquet and .*day/x\.parquet are one file by links; remove the link"
    ):
        Arrow(str(tmp_path), dense=["x"], categorical=[])


def test_two_columns_of_one_name_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([0]), pa.array([1])], ["label", "label"]), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet has several columns 'label'; rename or drop"):
        Arrow(str(tmp_path), dense=[], categorical=[])

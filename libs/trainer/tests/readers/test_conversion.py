"""Text and TFRecord become Parquet with the same cells; what cannot is refused by file, row, column and remedy."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto import DataError, hash_strings
from stretto.readers import conversion
from stretto.readers.arrow import Arrow
from stretto.readers.conversion import TextForm, convert
from table_files import write_text

CELLS = {
    "label": st.integers(0, 1),
    "age": st.none() | st.integers(-(2**63), 2**63 - 1),
    "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "city": st.none() | st.text("ab,;'\"\\| \tä", min_size=1),
    "tags": st.lists(st.integers(-5, 10**6), max_size=4),
}
FORMS: list[tuple[dict[str, Any], TextForm]] = [
    ({}, TextForm(escape="", lists=("tags",))),
    ({"delimiter": ";", "lineterminator": "\n"}, TextForm(";", escape="", lists=("tags",))),
    ({"escapechar": "\\", "doublequote": False}, TextForm(escape="\\", lists=("tags",))),
]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]


@settings(max_examples=60)
@given(files=st.lists(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=12), min_size=1, max_size=3),
       form=st.sampled_from(FORMS), packed=st.booleans())  # fmt: skip
def test_rows_that_the_csv_module_writes_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[dict[str, Any]]], form: Any, packed: bool
) -> None:
    folder = tmp_path_factory.mktemp("text")
    for number, rows in enumerate(files):
        path = folder / f"{number}.csv"
        write_text(path, rows, **form[0])
        if packed:
            path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "ROW_GROUP", 5)
        report = convert([str(folder)], folder / "out", form[1], 0)
    written = [row for rows in files for row in rows]
    found = rows_in(folder / "out")
    assert (report.rows, len(found)) == (len(written), len(written))
    for wrote, read in zip(written, found, strict=True):
        for name in ("label", "age", "tags"):
            assert read[name] == wrote[name] or str(read[name]) == str(wrote[name])  # no value at all: a column of text
        assert (read["price"] is None) == (wrote["price"] is None)
        assert wrote["price"] is None or float(read["price"]) == wrote["price"]
        assert read["city"] is None or str(read["city"]) == str(wrote["city"]).strip() or read["city"] == wrote["city"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["7", "", "-0"], "double"),
        (["7", "", "8"], "int64"),
        (["7", "8.5", "1e3"], "double"),
        (["01067", "10115"], "string"),  # postcodes
        ([str(2**63 - 1), str(-(2**63))], "int64"),
        ([str(2**64), "1"], "string"),  # as floats, two ids might be one
        ([" 7", "8 "], "int64"),
        (["7", "seven"], "string"),
        (["", ""], "string"),
    ],
)
def test_a_column_has_the_type_that_all_its_cells_have(tmp_path: Path, cells: list[str], expected: str) -> None:
    for number, cell in enumerate(cells):
        (tmp_path / f"{number}.csv").write_text(f"x,y\n{cell},0\n")
    report = convert([str(tmp_path / "*.csv")], tmp_path / "out", TextForm(), 0)
    assert [each["type"] for each in report.columns] == [expected, "int64"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("[1, 2]", ["1", "2"]), ("[1 2]", ["1", "2"]), ("1|2", ["1", "2"]), ("(3,)", ["3"]), ("[]", []), ("", None),
        ("['New York', 'Ulm']", ["New York", "Ulm"]), ("a;b c", ["a", "b c"]),
        ("[1, NULL]", ["1", None]),
        ("[' 1', '2']", [" 1", "2"]),
    ],
)  # fmt: skip
def test_a_list_is_read_as_people_write_it(tmp_path: Path, cell: str, expected: list[str] | None) -> None:
    write_text(tmp_path / "a.csv", [{"n": 0, "tags": cell}, {"n": 1, "tags": "z"}])
    convert([str(tmp_path / "a.csv")], tmp_path / "out", TextForm(lists=("tags",), missing=("NULL",)), 0)
    assert rows_in(tmp_path / "out")[0]["tags"] == expected


def test_empty_lists_and_empty_items_shift_no_other_list(tmp_path: Path) -> None:
    cells = ["[]", "['a', '']", "", "[b,,c]", "d"]
    write_text(tmp_path / "a.csv", [{"n": number, "tags": cell} for number, cell in enumerate(cells)])
    convert([str(tmp_path / "a.csv")], tmp_path / "out", TextForm(lists=("tags",)), 0)
    assert [row["tags"] for row in rows_in(tmp_path / "out")] == [[], ["a", ""], None, ["b", "", "c"], ["d"]]


@pytest.mark.parametrize(
    ("content", "form", "told"),
    [
        (b'n,t\n1,"a\\""\n2,"b"\n', TextForm(), r"a\.csv, row 0: t = .* holds a line end; .* --escape"),
        (b'n,t\n1,"x \\"y\\""\n', TextForm(), r"a\.csv, row 0: t = .* has a backslash before a quote; state --escape"),
        (b"n,n\n1,2\n", TextForm(), r"a\.csv has several columns 'n'; rename"),
        (b"n,t\n1,\xff\n", TextForm(), r"a\.csv cannot be parsed: .*invalid UTF8.*state its --encoding"),
        (
            b"n,t\n1\n",
            TextForm(),
            r"1 rows cannot be split into cells: .*a\.csv: row 0: 1 cells, expected 2.*--bad-rows-max",
        ),
        (b"n,t\n1,[[2]]\n", TextForm(lists=("t",)), r"a\.csv, row 0: t = '\[\[2\]\]' has lists within lists"),
        (b"t\n\"['x, y', 'z']\"\n", TextForm(lists=("t",)), r"row 0: t = .* a separator or a quote within an item"),
        (b"n;t\n1;2\n", TextForm(), r"a\.csv has one column, 'n;t'; state its separator: --delimiter ';'"),
        (b"PAR1" * 9, TextForm(), r"a\.csv is a Parquet file, which is read as it is"),
        (b"PK\x03\x04" * 9, TextForm(), r"a\.csv is a zip archive"),
        (b'{"n": 1}\n', TextForm(), r"a\.csv is JSON; write it as Parquet"),
        (
            gzip.compress(b"n,t\n" * 9999, mtime=0)[:-9],
            TextForm(),
            r"a\.csv cannot be parsed: Truncated .*cut off: fetch it again",
        ),
        (b"n,t\n1,2\n", TextForm(lists=("tags",)), r"a\.csv has no column 'tags'; it has n, t"),
        (b"", TextForm(), r"has no data file|no line|cannot be parsed"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_written(
    tmp_path: Path, content: bytes, form: TextForm, told: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=told):
        convert([str(tmp_path / "a.csv")], tmp_path / "out", form, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"delimiter": "::"}, "delimiter = '::': expected one character"),
        ({"escape": "§"}, "escape = '§': expected one character of ASCII"),
        ({"encoding": "klingon"}, "encoding = 'klingon' is unknown; as in utf-16"),
        ({"columns": ()}, "columns: none is named"),
    ],
)
def test_a_form_that_no_text_has_is_refused(form: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        TextForm(**form)


def test_files_with_other_columns_are_refused_and_another_order_is_none(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("b,a\n4,3\n")
    convert([str(tmp_path / "*.csv")], tmp_path / "out", TextForm(), 0)
    assert rows_in(tmp_path / "out") == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    (tmp_path / "3.csv").write_text("a,c\n1,2\n")
    with pytest.raises(DataError, match=r"3\.csv and .*1\.csv have other columns \(b, c\)"):
        convert([str(tmp_path / "*.csv")], tmp_path / "more", TextForm(), 0)
    with pytest.raises(DataError, match=r"out cannot be written: .*name another folder"):
        convert([str(tmp_path / "1.csv")], tmp_path / "1.csv/out", TextForm(), 0)
    with pytest.raises(DataError, match="out is there already"):
        convert([str(tmp_path / "1.csv")], tmp_path / "out", TextForm(), 0)


def test_tabs_stand_for_cells_without_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('n\tt\n1\tan "odd\n2\t5" tall\n')
    convert([str(tmp_path / "a.tsv")], tmp_path / "out", TextForm(), 0)
    assert rows_in(tmp_path / "out") == [{"n": 1, "t": 'an "odd'}, {"n": 2, "t": '5" tall'}]


def test_utf_16_is_known_by_its_first_bytes_and_rows_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("n,t\n1,ä\n2\n3,NA\n".encode("utf-16"))
    report = convert([str(tmp_path / "a.csv")], tmp_path / "out", TextForm(missing=("NA",)), 1)
    assert rows_in(tmp_path / "out") == [{"n": 1, "t": "ä"}, {"n": 3, "t": None}]
    assert (report.rows, report.refused_count, len(report.refused)) == (2, 1, 1)


def test_a_word_that_alone_keeps_a_column_from_being_numbers_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\nNULL\n3\n")
    report = convert([str(tmp_path / "a.csv")], tmp_path / "out", TextForm(), 0)
    assert report.columns[0]["hint"] == "numbers but for 'NULL' (1)"


def test_records_that_tensorflow_writes_are_converted(tmp_path: Path, run_warm: Any) -> None:
    """TensorFlow runs in another process; records with several values of a feature make a column of lists."""
    run_warm(f"""
from pathlib import Path
import tensorflow as tf
from tensorflow.train import Example, Feature, Features, FloatList, Int64List, BytesList
from stretto import DataError
from stretto.readers.conversion import TextForm, convert
path = Path({str(tmp_path)!r}) / "few.tfrecord"
with tf.io.TFRecordWriter(str(path)) as out:
    for i in range(300):
        out.write(Example(features=Features(feature={{
            "clicked": Feature(int64_list=Int64List(value=[i % 2])),
            "x": Feature(float_list=FloatList(value=[i / 4])),
            "user": Feature(int64_list=Int64List(value=[i])),
            "tags": Feature(bytes_list=BytesList(value=[b"a", b"b"][: i % 3])),
        }})).SerializeToString())
convert([str(path)], path.with_name("out"), TextForm(), 0)
whole = path.read_bytes()
with tf.io.TFRecordWriter(str(path)) as out:
    sequence = tf.train.SequenceExample()
    sequence.feature_lists.feature_list["x"].feature.add()
    out.write(sequence.SerializeToString())
for broken, told in (
    (path.read_bytes(), "record 0: a SequenceExample"),
    (whole[:-3], "damaged, cut off"),
    (whole[:20] + b"?" + whole[21:], "record 0: damaged"),
):
    path.write_bytes(broken)
    try:
        convert([str(path)], path.with_name("broken"), TextForm(), 0)
    except DataError as error:
        assert told in str(error), error
    else:
        raise AssertionError("damaged records were converted")
""")
    reader = Arrow(str(tmp_path / "out"), label="clicked", dense=["x"], categorical=["user"], lists={"tags": 2})
    batch = reader.read(0, 300)
    assert batch["label"].tolist() == [i % 2 for i in range(300)]
    assert batch["numeric"][:, 0].tolist() == [i / 4 for i in range(300)]
    assert batch["categorical"][:, 0].tolist() == [i + 1 for i in range(300)]
    a, b = hash_strings(["a", "b"]).tolist()
    assert batch["tags"][:3].tolist() == [[0, 0], [a, 0], [a, b]]


PUBLIC = Path(__file__).parents[5] / "shared" / "data" / "ctr" / "obd" / "random_men.csv.gz"
"""10,000 impressions of the Open Bandit Dataset (Saito et al. 2020), beside the clone where it was laid."""


@pytest.mark.skipif(not PUBLIC.exists(), reason=f"public data are not beside the clone: {PUBLIC.name}")
def test_a_log_of_real_clicks_is_read_as_the_csv_module_reads_it(tmp_path: Path) -> None:
    """Real column names, hashes and times; split by time at noon of the third day that the log has."""
    rows = list(csv.DictReader(gzip.decompress(PUBLIC.read_bytes()).decode().splitlines()))
    convert([str(PUBLIC)], tmp_path / "log", TextForm(), 0)
    at = sorted({row["timestamp"][:10] for row in rows})[2] + "T12:00:00Z"
    features = [f"user_feature_{i}" for i in range(4)]
    affinities = [name for name in rows[0] if name.startswith("user-item_affinity")]
    reader = Arrow(
        str(tmp_path / "log"), label="click", dense=affinities, categorical=["item_id", *features],
        weight="propensity_score", timestamp="timestamp", train_before=at,
    )  # fmt: skip
    limit = datetime.fromisoformat(at)
    before = [row for row in rows if datetime.fromisoformat(row["timestamp"]) < limit]
    ordered = [*before, *(row for row in rows if datetime.fromisoformat(row["timestamp"]) >= limit)]
    assert (reader.train_samples, reader.size) == (len(before), len(rows))
    assert 0 < len(before) < len(rows)
    parts = [reader.read(start, min(512, len(rows) - start)) for start in range(0, len(rows), 512)]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert whole["label"].tolist() == [float(row["click"]) for row in ordered]
    assert whole["weight"].tolist() == [np.float32(row["propensity_score"]) for row in ordered]
    assert np.array_equal(
        whole["numeric"], np.array([[row[name] for name in affinities] for row in ordered], np.float32)
    )
    assert whole["categorical"][:, 0].tolist() == [int(row["item_id"]) + 1 for row in ordered]
    hashes = hash_strings([[row[name] or None for name in features] for row in ordered])
    assert np.array_equal(whole["categorical"][:, 1:], hashes)

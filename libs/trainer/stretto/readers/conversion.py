"""Text and TFRecord to Parquet, once, so that any sample can be read by its number: ``stretto data convert``.

pyarrow parses text, TensorFlow TFRecord. A column has one type in all files: they are read through twice, first for the
types, then to write.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyarrow import csv as pa_csv

from ..errors import DataError
from .formats import refuse_twins
from .places import File, find

pc: Any = pyarrow.compute  # its functions are made at run time: type checkers know few of them

ROW_GROUP = 2**15
"""Rows that are decoded together: about a shard of the default size."""
_BLOCK_BYTES = 2**24
"""Text that is parsed at once; a cell is no longer."""
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_BOMS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_NO_TEXT = {
    b"PAR1": "a Parquet file, which is read as it is",
    b"ARROW1": "an Arrow file, which is read as it is",
    b"PK\x03\x04": "a zip archive or an Excel file; unpack it, or save it as CSV",
    b"\xfd7zXZ": "packed by xz; unpack it (xz -d)",
    b"\xff\x06\0\0sNaPpY": "packed by snappy; unpack it",
    b'{"': "JSON; write it as Parquet, as pyarrow.json.read_json reads it",
    b"<!doctype": "HTML, not a table of text; look at what was downloaded",
    b"<html": "HTML, not a table of text; look at what was downloaded",
    b"<?xml": "XML; write it as Parquet or CSV",
    b"sep=": "text with a first line of Excel's, sep=; remove that line",
}
"""First bytes of files that are no CSV, and what they are. JSON and HTML would be tables of one column."""
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
"""A number with leading zeros is text: as an integer, another text would be the same."""
_SEPARATORS = ("|", ";", ",")
_RECORDS = re.compile(r"\.tfrecords?(-\d+-of-\d+)?(\.gz)?$", re.IGNORECASE)
_ODD_WORDS = 3
_TOLD_ROWS = 10

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class TextForm:
    """The form of text. delimiter, quote: None takes tabs without quotes for names such as .tsv, else commas and ".

    quote, escape: an empty text for none; with an escape of None a backslash before a quote is refused. columns: None
    takes them from each file's first line. missing: texts that are no value, besides the empty one. lists: columns of
    lists. newlines: cells may hold line ends.
    """

    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    encoding: str | None = None
    columns: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    newlines: bool = False

    def __post_init__(self) -> None:
        for name, each, may_be_none in (
            ("delimiter", self.delimiter, False), ("quote", self.quote, True), ("escape", self.escape, True),
        ):  # fmt: skip
            if each is not None and not (
                (len(each) == 1 and each.isascii() and each not in "\r\n") or (may_be_none and not each)
            ):
                raise DataError(f"{name} = {each!r}: expected one character of ASCII that is no line end")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise DataError(f"encoding = {self.encoding!r} is unknown; as in utf-16, latin-1, cp1252") from None
        if self.columns == ():
            raise DataError("columns: none is named; name all of them, or leave this out where a first line does")


@dataclass(slots=True)
class ColumnFacts:
    """The form of a column's cells in all files. odd: the words that are no numbers, if there are three at most."""

    name: str
    cells: int = 0
    nulls: int = 0
    is_integer: bool = True
    is_number: bool = True
    is_list: bool = False
    odd: dict[str, int] = field(default_factory=dict)

    @property
    def type(self) -> Any:
        """The Arrow type that holds every cell."""
        plain = pa.int64() if self.is_integer else pa.float64() if self.is_number else pa.string()
        plain = pa.string() if self.nulls == self.cells and not self.is_list else plain
        return pa.list_(plain) if self.is_list else plain

    def take(self, column: Any) -> None:
        """Note the cells of a run of rows: texts, or lists of texts."""
        self.cells += len(column)
        self.nulls += column.null_count
        words = pc.unique(pc.drop_null(pc.list_flatten(column) if self.is_list else column))
        if not (self.is_number and len(words)):
            return
        words = words if self.is_list else pc.utf8_trim_whitespace(words)
        integral = pc.match_substring_regex(words, _INTEGER)
        self.is_integer &= pc.all(integral).as_py()
        if not _casts(words.filter(integral), pa.int64()):
            self.is_integer = self.is_number = False  # ids of more than 64 bits: as floats, some would be the same
        elif not self.is_integer and not _casts(words, pa.float64()):
            self._note_odd(column, words)
        elif not self.is_integer and pc.any(pc.match_substring_regex(words, r"^-?0[0-9]")).as_py():
            self.is_number = False  # leading zeros, as in a postcode

    def _note_odd(self, column: Any, words: Any) -> None:
        odd = [word.as_py() for word in words if not _casts(pa.array([word.as_py()]), pa.float64())][: _ODD_WORDS + 1]
        cells = pc.list_flatten(column) if self.is_list else pc.utf8_trim_whitespace(column)
        self.is_number = False
        self.odd = {} if len(odd) > _ODD_WORDS else dict.fromkeys(odd, 0)
        for word in self.odd:
            self.odd[word] = int(pc.sum(pc.equal(cells, word)).as_py() or 0)


@dataclass(slots=True)
class Report:
    """The result of a conversion. refused: file, row and reason of the first rows that are left out."""

    folder: str
    files: int = 0
    rows: int = 0
    columns: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refused: list[str] = field(default_factory=list[str])
    refused_count: int = 0


def convert(
    sources: Sequence[str], folder: Path, form: TextForm, bad_rows_max: int, progress: Progress = lambda *_: None
) -> Report:
    """Write files of text or TFRecord as Parquet into a new folder, one for each, in the order of the samples.

    Nothing is there before all of it is. Raises DataError.
    """
    if folder.exists() or folder.is_symlink():
        raise DataError(f"{folder} is there already: name a folder that is not, or remove it")
    files = find(sources)
    report = Report(str(folder), len(files))
    tables = _Records(files) if all(_RECORDS.search(file.path) for file in files) else _Texts(files, form)
    for number, file in enumerate(files):
        progress("reading", number, len(files))
        tables.learn(file)
    schema = tables.schema()
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        for number, file in enumerate(files):
            progress("writing", number, len(files))
            stem = re.sub(r"(\.[A-Za-z0-9]{1,8}){1,2}$", "", Path(file.path).name)
            _write(temporary / f"{number:05d}-{stem}.parquet", tables, file, schema, report)
            if report.refused_count > bad_rows_max:
                rows = f"{report.refused_count} rows cannot be split into cells"
                raise DataError(f"{rows}: {report.refused[0]}; mend the file, or leave them out: --bad-rows-max N")
        temporary.rename(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error}; name another folder, or make room") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    report.columns = tables.facts()
    return report


def _write(path: Path, tables: _Texts | _Records, file: File, schema: Any, report: Report) -> None:
    """Write the rows of a file, in groups of :data:`ROW_GROUP`."""
    waiting: list[Any] = []
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in tables.read(file, report):
            waiting.append(_typed(table, schema))
            report.rows += table.num_rows
            if sum(each.num_rows for each in waiting) >= ROW_GROUP:
                whole = pa.concat_tables(waiting)
                even = whole.num_rows // ROW_GROUP * ROW_GROUP
                writer.write_table(whole.slice(0, even), row_group_size=ROW_GROUP)
                waiting = [whole.slice(even)]
        if waiting:
            writer.write_table(pa.concat_tables(waiting), row_group_size=ROW_GROUP)


def _typed(table: Any, schema: Any) -> Any:
    """Return texts in the types of the schema; white space around numbers is none of theirs."""
    for place, field_ in enumerate(schema):
        if pa.types.is_primitive(field_.type) and pa.types.is_string(table.column(place).type):
            table = table.set_column(place, table.field(place), pc.utf8_trim_whitespace(table.column(place)))
    return table.cast(schema)


class _Texts:
    """Files of text as tables of text; lists are split."""

    def __init__(self, files: Sequence[File], form: TextForm) -> None:
        self._form = form
        self._names: dict[str, list[str]] = {}
        self._facts: dict[str, ColumnFacts] = {}
        self._first = files[0].name

    def learn(self, file: File) -> None:
        """Read a file for the types of its columns. Raises DataError."""
        names = self._names_in(file)
        refuse_twins(file.name, names)
        if self._facts and set(names) != set(self._facts):
            other = sorted(set(names) ^ set(self._facts))
            raise DataError(f"{file.name} and {self._first} have other columns ({', '.join(other[:5])}); convert apart")
        missing = [name for name in self._form.lists if name not in names]
        if missing:
            raise DataError(f"lists: {file.name} has no column {missing[0]!r}; it has {', '.join(names[:20])}")
        self._names[file.name] = names
        for name in names:
            self._facts.setdefault(name, ColumnFacts(name, is_list=name in self._form.lists))
        for table in self.read(file, Report("")):
            for name in names:
                self._facts[name].take(table.column(name).combine_chunks())

    def schema(self) -> Any:
        """Return the columns with the types that all files have in common."""
        return pa.schema([(name, facts.type) for name, facts in self._facts.items()])

    def facts(self) -> list[dict[str, Any]]:
        """Return name, type, missing cells and a hint of each column, for the report."""
        found: list[dict[str, Any]] = []
        for name, facts in self._facts.items():
            few = ", ".join(f"{word!r} ({count})" for word, count in facts.odd.items())
            hint = f"numbers but for {few}" if few and sum(facts.odd.values()) < (facts.cells - facts.nulls) / 2 else ""
            found.append({"name": name, "type": str(facts.type), "missing": facts.nulls, "hint": hint})
        return found

    def read(self, file: File, report: Report) -> Iterator[Any]:
        """Yield the rows of a file as tables of texts and lists of texts, in the order of the first file's columns."""
        refused: list[str] = []
        row = 0

        def refuse(found: Any) -> str:
            cells = f"{found.actual_columns} cells, expected {found.expected_columns}: {str(found.text)[:80]!r}"
            heads = 2 if self._form.columns is None else 1  # pyarrow counts from 1, the first line too
            refused.append(f"row {found.number - heads}: {cells}" if found.number else cells)
            return "skip"

        for batch in self._batches(file, self._names[file.name], refuse):
            table = pa.Table.from_batches([batch])
            self._check_line_ends(file, table, row)
            self._check_escapes(file, table, row)
            for name in self._form.lists:
                at = table.column_names.index(name)
                lists = _split(table.column(name).combine_chunks(), self._form.missing, f"{file.name}, row", row, name)
                table = table.set_column(at, name, [lists])
            row += table.num_rows
            yield table.select(list(self._facts))
        report.refused_count += len(refused)
        report.refused += [f"{file.name}: {each}" for each in refused[: _TOLD_ROWS - len(report.refused)]]

    def _check_line_ends(self, file: File, table: Any, before: int) -> None:
        """Refuse cells with line ends, unless they are stated: an escaped quote makes one sample of two rows."""
        if self._form.newlines:
            return
        for name in table.column_names:
            found = pc.index(pc.match_substring_regex(table.column(name), r"[\r\n]"), True).as_py()
            if found >= 0:
                cell = table.column(name)[found].as_py()
                raise DataError(
                    f"{file.name}, row {before + found}: {name} = {cell[:60]!r} holds a line end; state the character "
                    "that escapes quotes (Spark: --escape '\\\\'), or that cells may hold line ends (--newlines)"
                )

    def _check_escapes(self, file: File, table: Any, before: int) -> None:
        """Refuse cells in which a backslash stands before a quote, unless something is stated of escapes."""
        if self._form.escape is not None:
            return
        for name in table.column_names:
            found = pc.index(pc.match_substring(table.column(name), '\\"'), True).as_py()
            if found >= 0:
                cell = table.column(name)[found].as_py()
                raise DataError(
                    f"{file.name}, row {before + found}: {name} = {cell[:60]!r} has a backslash before a quote; state "
                    "--escape '\\' if it escapes the quote, or --escape '' if both are text"
                )

    def _names_in(self, file: File) -> list[str]:
        if self._form.columns is not None:
            return list(self._form.columns)
        try:
            with self._opened(file, None, None) as reader:
                names = list(reader.schema.names)
        except (pa.ArrowInvalid, UnicodeError, OSError) as error:
            raise self._refusal(file, error) from error
        other = next((each for each in ";\t|," if len(names) == 1 and each in names[0]), "")
        if other:
            raise DataError(
                f"{file.name} has one column, {names[0][:60]!r}; state its separator: --delimiter {other!r}"
            )
        return names

    def _batches(self, file: File, names: Sequence[str], refuse: Callable[[Any], str]) -> Iterator[Any]:
        try:
            with self._opened(file, names, refuse) as reader:
                yield from reader
        except (pa.ArrowInvalid, UnicodeError, OSError) as error:
            raise self._refusal(file, error) from error

    def _opened(self, file: File, names: Sequence[str] | None, refuse: Callable[[Any], str] | None) -> Any:
        """Open a file for text in all columns. Raises DataError."""
        form, head = self._form, file.store.ask(file.name, lambda: bytes(file.store.open(file.path).read_at(10, 0)))
        for start, kind in _NO_TEXT.items():
            if head.lower().startswith(start.lower()):
                raise DataError(f"{file.name} is {kind}")
        if _RECORDS.search(file.path):
            raise DataError(f"{file.name} is TFRecord, and other files are text; convert them apart")
        compression = next((kind for magic, kind in _COMPRESSIONS.items() if head.startswith(magic)), None)
        encoding = form.encoding or next((kind for bom, kind in _BOMS.items() if head.startswith(bom)), "utf-8")
        plain = re.sub(r"\.[A-Za-z0-9]+$", "", file.path) if compression else file.path
        tabs = plain.lower().endswith((".tsv", ".tab"))
        stream = file.store.ask(
            file.name, lambda: file.store.filesystem.open_input_stream(file.path, compression=compression)
        )
        return pa_csv.open_csv(
            stream,
            read_options=pa_csv.ReadOptions(
                column_names=form.columns, use_threads=False, block_size=_BLOCK_BYTES, encoding=encoding
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=form.delimiter or ("\t" if tabs else ","),
                quote_char=form.quote or (False if form.quote == "" or tabs else '"'),
                escape_char=form.escape or False,
                newlines_in_values=True,
                invalid_row_handler=refuse or (lambda found: "skip"),
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names or (), pa.string()),
                null_values=["", *form.missing],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _refusal(self, file: File, error: Exception) -> DataError:
        text = str(error).splitlines()[0][:300]
        remedy = "quotes are not balanced, or escaped otherwise: state --quote and --escape"
        if isinstance(error, UnicodeError) or "UTF8" in text:
            remedy = "state its --encoding (utf-16, latin-1, cp1252)"
        elif "Empty CSV" in text:
            remedy = "it has no line: leave it out"
        elif isinstance(error, OSError) and not isinstance(error, pa.ArrowInvalid):
            remedy = "it is damaged or cut off: fetch it again"
        return DataError(f"{file.name} cannot be parsed: {text}; {remedy}")


class _Records:
    """TFRecord files of tf.train.Example as tables. TensorFlow checks their checksums."""

    def __init__(self, files: Sequence[File]) -> None:
        if not all(file.store.is_local for file in files):
            raise DataError(f"{files[0].name}: TFRecord is converted from files of this machine; copy them here")
        self._kinds: dict[str, str] = {}
        self._many: set[str] = set()
        self._counts: dict[str, int] = {}
        self._rows = 0

    def learn(self, file: File) -> None:
        """Read a file for the types of its features. Raises DataError."""
        for number, features in enumerate(_examples(file)):
            self._rows += 1
            for name, feature in features.items():
                kind = feature.WhichOneof("kind")
                if kind is None:
                    continue
                if self._kinds.setdefault(name, kind) != kind:
                    kinds = f"{kind} and elsewhere {self._kinds[name]}"
                    raise DataError(f"{file.name}, record {number}: feature {name!r} is {kinds}; write one kind")
                self._counts[name] = self._counts.get(name, 0) + 1
                if len(getattr(feature, kind).value) != 1:
                    self._many.add(name)

    def schema(self) -> Any:
        """Return the columns: lists where a record has no or several values, else plain."""
        plain = {"int64_list": pa.int64(), "float_list": pa.float32(), "bytes_list": pa.binary()}
        types = {name: plain[kind] for name, kind in self._kinds.items()}
        return pa.schema([(name, pa.list_(of) if name in self._many else of) for name, of in types.items()])

    def facts(self) -> list[dict[str, Any]]:
        """Return name, type and missing values of each feature, for the report."""
        of = self.schema()
        return [
            {"name": name, "type": str(of.field(name).type), "missing": self._rows - count, "hint": ""}
            for name, count in self._counts.items()
        ]

    def read(self, file: File, report: Report) -> Iterator[Any]:
        """Yield the records of a file as tables."""
        schema = self.schema()
        rows: list[dict[str, Any]] = []
        for features in _examples(file):
            row: dict[str, Any] = {}
            for name, feature in features.items():
                kind = feature.WhichOneof("kind")
                values = None if kind is None else list(getattr(feature, kind).value)
                row[name] = values if values is None or name in self._many else values[0]
            rows.append(row)
            if len(rows) == ROW_GROUP:
                yield pa.Table.from_pylist(rows, schema=schema)
                rows = []
        yield pa.Table.from_pylist(rows, schema=schema)


def _examples(file: File) -> Iterator[Any]:
    """Yield the features of each record of a local file. Raises DataError."""
    try:
        import tensorflow as tf
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet
    except ImportError as error:
        raise DataError(f"{file.name} is TFRecord, which TensorFlow reads: install stretto[keras] ({error})") from error
    with open(file.path, "rb") as opened:
        packed = "GZIP" if opened.read(2) == b"\x1f\x8b" else ""
    records = tf.data.TFRecordDataset(file.path, compression_type=packed).as_numpy_iterator()
    number = 0
    try:
        for data in records:
            example = tf.train.Example.FromString(data)
            if len(UnknownFieldSet(example)):
                raise DataError(
                    f"{file.name}, record {number}: a SequenceExample, whose lists of features are not read"
                )
            yield example.features.feature
            number += 1
    except DecodeError as error:
        raise DataError(f"{file.name}, record {number}: no tf.train.Example ({error})") from error
    except tf.errors.DataLossError as error:
        told = error.message.rpartition("}} ")[2].partition(" [Op:")[0]
        raise DataError(f"{file.name}, record {number}: damaged, cut off or compressed: {told}") from error


def _split(column: Any, missing: Sequence[str], where: str, before: int, name: str) -> Any:
    """Return cells such as "[1, 2]", "1 2" or "a|b" as lists of texts.

    Brackets around a cell and quotes around an item are taken off. The separator of a cell is the first of | ; , that
    it has, else white space. missing: items that are no value. before: rows of the file before these.
    """
    bracketed = r"^\s*[\[({]\s*(.*?)\s*[\])}]\s*$"
    inner = pc.utf8_trim_whitespace(pc.replace_substring_regex(column, bracketed, r"\1"))
    even = pc.replace_substring_regex(inner, r"\s+", "\x1f")
    for separator in reversed(_SEPARATORS):
        by = pc.replace_substring_regex(inner, rf"\s*{re.escape(separator)}\s*", "\x1f")
        even = pc.if_else(pc.match_substring(inner, separator), by, even)
    parts = pc.split_pattern(pc.utf8_trim(even, "\x1f"), "\x1f")
    items = pc.replace_substring_regex(pc.list_flatten(parts), r"""^(?:'(.*)'|"(.*)")$""", r"\1\2")
    rows = pc.list_parent_indices(parts)
    quoted = pc.and_(pc.match_substring_regex(items, r"""^['"]"""), pc.take(pc.not_equal(inner, column), rows))
    odd = pc.index(pc.or_(quoted, pc.match_substring_regex(items, r"^[\[({]|[\])}]$")), True).as_py()
    if odd >= 0:
        row = rows[odd].as_py()
        raise DataError(
            f"{where} {before + row}: {name} = {column[row].as_py()[:60]!r} has lists within lists, or a separator or "
            f"a quote within an item, as at {items[odd].as_py()[:30]!r}; write plain lists, as in a|b"
        )
    items = pc.if_else(pc.is_in(items, pa.array(missing, pa.string())), None, items)
    empty = pc.equal(inner, "")
    lengths = pc.fill_null(pc.if_else(empty, 0, pc.list_value_length(parts)), 0)
    kept = items.filter(pc.fill_null(pc.invert(pc.take(empty, rows)), False))
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, kept, mask=column.is_null())


def _casts(words: Any, to: Any) -> bool:
    try:
        words.cast(to)
    except pa.ArrowInvalid:
        return False
    return True

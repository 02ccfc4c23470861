"""Series of records, and tables of them for pandas and Arrow. Neither is needed for anything else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pydantic import BaseModel

from ..errors import PackageMissing

if TYPE_CHECKING:
    import pandas
    import pyarrow

R = TypeVar("R", covariant=True)


class Series(Sequence[R], Generic[R]):
    """A series of records of one kind. A record's own records are columns such as ``plan.workers``."""

    def __init__(self, kind: type[R], records: Iterable[R]) -> None:
        self._kind = kind
        self._records = tuple(records)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Series[R]: ...
    def __getitem__(self, index: int | slice) -> R | Series[R]:
        return Series(self._kind, self._records[index]) if isinstance(index, slice) else self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"Series of {len(self)} {self._kind.__name__}"

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the records as flat rows, each with every column."""
        rows = [dict(_cells("", record)) for record in self._records]
        columns = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name) for name in columns} for row in rows]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame. Raises PackageMissing."""
        library = _imported("pandas", "to_pandas()")
        rows = self.to_rows()
        return library.DataFrame.from_records(rows, columns=[*rows[0]] if rows else self._names())

    def to_arrow(self) -> pyarrow.Table:
        """Return a table of Arrow; a column of mixed kinds as JSON. Raises PackageMissing."""
        library = _imported("pyarrow", "to_arrow()")
        rows = self.to_rows()
        names = [*rows[0]] if rows else self._names()
        return library.table({name: _column(library, [row[name] for row in rows]) for name in names})

    def _names(self) -> list[str]:
        return [one.name for one in fields(self._kind)] if is_dataclass(self._kind) else []


def _imported(package: str, purpose: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise PackageMissing(package, purpose) from None


def _cells(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a value; a list stays one."""
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _cells(f"{prefix}.{one.name}" if prefix else one.name, getattr(value, one.name))
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _cells(f"{prefix}.{name}" if prefix else name, getattr(value, name))
    elif isinstance(value, Mapping) and prefix:
        for name, each in value.items():
            yield from _cells(f"{prefix}.{name}", each)
    else:
        yield prefix, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) if not is_dataclass(each) else dict(_cells("", each)) for each in value]
    return value


def _column(library: Any, values: list[Any]) -> Any:
    try:
        return library.array(values)
    except (library.ArrowInvalid, library.ArrowTypeError):
        return library.array([None if each is None else json.dumps(each, default=str) for each in values])

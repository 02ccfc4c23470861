"""Series as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from stretto_client.answers.series import Series
from stretto_client.errors import PackageMissing
from stretto_client.protocol.events import Event
from stretto_messages.values import Plan
from stretto_wire.rest import views

PLAN = Plan(workers=2, ps=1, worker_cpu_cores=1, ps_cpu_cores=1, worker_memory_bytes=2**30, ps_memory_bytes=2**30)
REFUSALS = Series(
    views.Refusal, [views.Refusal(1.0, "improve", PLAN, ("a", "b")), views.Refusal(2.0, "cost", PLAN, ())]
)


def test_records_within_records_are_columns() -> None:
    rows = REFUSALS.to_rows()
    assert [row["wanted.workers"] for row in rows] == [2, 2]
    assert rows[0]["reasons"] == ["a", "b"]
    assert [*rows[0]] == [*rows[1]]


def test_a_series_is_a_sequence() -> None:
    assert len(REFUSALS) == 2
    assert REFUSALS[-1].kind == "cost"
    assert [one.kind for one in REFUSALS[:1]] == ["improve"]
    assert repr(REFUSALS) == "Series of 2 Refusal"


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_tables_have_every_row_and_column(library: str) -> None:
    pytest.importorskip(library)
    table: Any = REFUSALS.to_pandas() if library == "pandas" else REFUSALS.to_arrow()
    rows = table.to_dict("records") if library == "pandas" else table.to_pylist()
    assert rows == REFUSALS.to_rows()


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_an_empty_series_has_columns(library: str) -> None:
    pytest.importorskip(library)
    empty = Series(views.ThroughputPoint, ())
    names = list(empty.to_pandas().columns) if library == "pandas" else empty.to_arrow().column_names
    assert names[:2] == ["time_s", "plan_version"]


def test_events_of_several_kinds_share_a_table() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    events = Series(Event, [event(1, "a", {"x": 1, "y": {"z": 2}}), event(2, "b", {"x": "text"})])
    table = events.to_arrow()
    assert isinstance(table, pyarrow.Table)
    assert [json.loads(value) for value in table["body.data.x"].to_pylist()] == [1, "text"]
    assert table["body.data.y.z"].to_pylist() == [2, None]


def event(seq: int, name: str, data: dict[str, Any]) -> Event:
    return Event(seq, name, {"seq": seq, "time_s": 1.0, "job": "x", "service": "s", "data": data})


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch, method: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PackageMissing, match=f"pip install {package}") as missing:
        getattr(REFUSALS, method)()
    assert isinstance(missing.value, ImportError)


def test_the_client_needs_neither_tensorflow_nor_numpy_and_loads_nothing_early() -> None:
    heavy = "numpy", "tensorflow", "pandas", "pyarrow", "IPython", "stretto_core", "stretto_runtime", "nats"
    program = (
        "import sys, stretto_client; early = 'httpx' in sys.modules or 'pydantic' in sys.modules; "
        "from stretto_client import connect, AsyncClient, Series, Decision; "
        "assert dir(stretto_client) == stretto_client.__all__; "
        f"print(early, 'httpx' in sys.modules, [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False []"

"""Tables in object stores: a real S3 server behind a proxy that is late, throttles, fails and breaks connections."""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clicks import readme_code
from object_store import Proxy, environment_of, s3_server
from pyarrow import fs
from stretto import DataError
from stretto.readers import Batch
from stretto.readers import places as places_module
from stretto.readers.arrow import Arrow
from table_files import COLUMNS as COLUMNS_OF_ROWS
from table_files import FORMATS, rows_of, write

COLUMNS: dict[str, Any] = {"dense": ["x"], "categorical": ["c"]}
LATENCY_S = 0.02
ROWS = 3000


def table(number: int, rows: int = ROWS) -> pa.Table:
    draw = np.random.default_rng(number)
    return pa.table({"label": draw.integers(0, 2, rows), "x": draw.normal(size=rows), "c": draw.integers(0, 99, rows)})


def same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the server serves; each folder in it is a bucket."""
    path = tmp_path_factory.mktemp("s3")
    for number in range(4):
        (path / f"data/clicks/day={number}").mkdir(parents=True)
        pq.write_table(table(number), path / f"data/clicks/day={number}/part.parquet", row_group_size=500)
    (path / "data/rows").mkdir()
    for kind in FORMATS:
        write(path / f"data/rows/day.{kind}", kind, rows_of(150), piece=40)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[int]:
    with s3_server(folder) as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    proxy = Proxy(server)
    for name, value in environment_of(proxy.port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(places_module, "_FIRST_PAUSE_S", 0.01)
    places_module._opened.cache_clear()
    yield proxy
    proxy.close()
    places_module._opened.cache_clear()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_from_an_object_store(folder: Path, proxy: Proxy, kind: str) -> None:
    remote = Arrow(f"s3://data/rows/day.{kind}", **COLUMNS_OF_ROWS)
    local = Arrow(str(folder / f"data/rows/day.{kind}"), **COLUMNS_OF_ROWS)
    assert remote.size == 150
    for start, length in ((0, 150), (37, 20), (149, 1), (10, 0)):
        assert same(remote.read(start, length), local.read(start, length))


def test_folders_globs_and_lists_are_found(folder: Path, proxy: Proxy) -> None:
    whole = Arrow(str(folder / "data/clicks"), **COLUMNS).read(0, 4 * ROWS)
    urls = [f"s3://data/clicks/day={number}/part.parquet" for number in range(4)]
    for paths in ("s3://data/clicks", "s3://data/clicks/", "s3://data/clicks/day=*/*.parquet", urls):
        reader = Arrow(paths, **COLUMNS)
        assert reader.size == 4 * ROWS
        assert same(reader.read(0, 4 * ROWS), whole)


def test_a_client_of_pyarrow_or_fsspec_can_be_given(folder: Path, proxy: Proxy) -> None:
    given = environment_of(proxy.port)
    client = fs.S3FileSystem(
        access_key=given["AWS_ACCESS_KEY_ID"],
        secret_key=given["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=given["AWS_ENDPOINT_URL"],
        region="us-east-1",
    )
    assert Arrow("data/clicks", **COLUMNS, filesystem=client).size == 4 * ROWS
    import fsspec

    memory = fsspec.filesystem("memory")
    with memory.open("/x.parquet", "wb") as file:
        pq.write_table(table(1), file)
    assert Arrow("/x.parquet", **COLUMNS, filesystem=memory).size == ROWS


@pytest.mark.parametrize("fault", ["503", "500", "break", "cut"])
def test_reads_survive_throttling_errors_and_broken_connections(folder: Path, proxy: Proxy, fault: str) -> None:
    """Every third request fails; the samples are the same, and none is asked for without an end."""
    proxy.fault = lambda number, line: fault if number % 3 == 2 else None
    reader = Arrow("s3://data/clicks", **COLUMNS)
    whole = Arrow(str(folder / "data/clicks"), **COLUMNS).read(0, 4 * ROWS)
    parts = [reader.read(start, 500) for start in range(0, 4 * ROWS, 500)]
    assert same({name: np.concatenate([part[name] for part in parts]) for name in whole}, whole)
    assert len(proxy.requests) < 400


def test_a_request_that_is_never_answered_is_repeated(folder: Path, proxy: Proxy) -> None:
    reader = Arrow("s3://data/clicks", **COLUMNS)
    proxy.requests.clear()
    proxy.fault = lambda number, line: "hang" if number == 0 else None
    assert same(reader.read(0, 500), Arrow(str(folder / "data/clicks"), **COLUMNS).read(0, 500))


def test_a_store_that_stays_away_is_given_up_with_its_last_answer(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Arrow("s3://data/clicks", **COLUMNS)
    proxy.fault = lambda number, line: "503"
    monkeypatch.setattr(places_module, "_LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(places_module, "_ATTEMPTS", 1)
    with pytest.raises(DataError, match=r"s3://data/clicks/day=0/part.parquet cannot be read: .*(SlowDown|SLOW_DOWN)"):
        reader.read(0, 10)
    proxy.fault = lambda number, line: None
    assert len(reader.read(0, 10)["label"]) == 10  # a failure is not kept


@pytest.mark.parametrize(
    ("change", "url", "told"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            "s3://data/clicks",
            "access is refused .*; give credentials, as in AWS_ACC",
        ),
        ({"AWS_ACCESS_KEY_ID": "wrong"}, "s3://data/rows/*.csv", "access is refused"),
        ({}, "s3://no-such-bucket/clicks", "no such file, folder or bucket"),
        ({}, "s3://data/none.parquet", "no such file, folder"),
        ({}, "s3://user:secret@data/none.parquet", r"^s3://data/none.parquet"),
    ],
)
def test_what_a_store_refuses_is_told_at_once(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], url: str, told: str
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=told) as refused:
        Arrow(url, **COLUMNS)
    assert "secret" not in str(refused.value)
    assert len(proxy.requests) <= 8


@pytest.mark.parametrize(
    ("url", "kind", "path"),
    [
        ("gs://bucket/a/b%20c.csv", "gcs", "bucket/a/b c.csv"),
        ("abfss://data@account.dfs.core.windows.net/a/b.csv", "abfs", "data/a/b.csv"),
        ("abfs://account.blob.core.windows.net/data/a/b.csv", "abfs", "data/a/b.csv"),
        ("s3://bucket/a/*.csv?region=eu-central-1", "s3", "bucket/a/*.csv"),
        ("s3://bucket", "s3", "bucket"),
    ],
)
def test_urls_of_every_store_are_understood(proxy: Proxy, url: str, kind: str, path: str) -> None:
    store, found = places_module.locate(url)
    assert (store.filesystem.type_name, found) == (kind, path)


def test_pods_after_the_first_read_no_footers(folder: Path, proxy: Proxy) -> None:
    (folder / "data/many").mkdir()
    for number in range(40):
        pq.write_table(table(number, 50), folder / f"data/many/part-{number:03d}.parquet")
    proxy.latency_s = LATENCY_S
    assert Arrow("s3://data/many", **COLUMNS).size == 2000
    assert [path.name for path in (folder / "data/many").glob("_stretto*")] != []
    proxy.requests.clear()
    reader = Arrow("s3://data/many", **COLUMNS)
    assert reader.size == 2000
    asked = {line.split()[1].partition("?")[0] for line in proxy.requests}
    assert {name for name in asked if "part-" in name} == {"/data/many/part-000.parquet"}
    assert len(reader.read(700, 100)["label"]) == 100


def test_requests_are_hidden_behind_the_use_of_samples(proxy: Proxy) -> None:
    """A consumer of 1 ms per 100 samples waits for the first block only, of 24 that come 60 ms late each."""
    proxy.latency_s = LATENCY_S
    reader = Arrow("s3://data/clicks", **COLUMNS)
    waited: list[float] = []
    for start in range(0, 4 * ROWS, 100):
        began_s = time.monotonic()
        reader.read(start, 100)
        waited.append(time.monotonic() - began_s)
        time.sleep(0.005)
    assert sum(each > LATENCY_S for each in waited) <= 12  # one wait a block would be 24 and more
    assert len(proxy.requests) < 40


def test_memory_for_blocks_is_bounded(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.readers.arrow._BLOCK_BYTES", 1000)
    reader = Arrow("s3://data/clicks", **COLUMNS, memory_bytes=40_000)
    most = 0
    for start in range(0, 4 * ROWS, 100):
        reader.read(start, 100)
        most = max(most, reader._ahead.kept_bytes())
    assert 8_000 < most <= 40_000  # a row group of 500 rows is a block of 8000 bytes


def test_the_examples_of_the_readme_read(folder: Path, proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    for day in (2, 3):
        at = [datetime(2026, 11, day, hour % 24, tzinfo=UTC) for hour in range(400)]
        rows = {"clicked": [0, 1] * 200, "age": [30] * 400, "price": [1.5] * 400, "user": list(range(400))}
        rows |= {"city": ["Ulm"] * 400, "tags": [["a", "b"]] * 400, "importance": [1.0] * 400, "at": at}
        (folder / f"shop/clicks/day={day}").mkdir(parents=True)
        pq.write_table(pa.table({**rows, "title": ["t"] * 400}), folder / f"shop/clicks/day={day}/x.parquet")
    names: dict[str, Any] = {}
    exec(compile(readme_code("\nreader = Arrow("), "README.md", "exec"), names)
    assert capsys.readouterr().out == "dataset: {samples: 400}; evaluate: 400\n"
    assert names["batch"]["tags"].shape == (512, 8)
    assert set(names["batch"]) == {"label", "numeric", "categorical", "tags", "weight", "title"}
    exec(compile(readme_code("\nreader = MapStyle("), "README.md", "exec"), names)
    assert names["batch"]["categorical"][0].tolist() == [3, 10]


def test_files_are_read_over_http(folder: Path, proxy: Proxy) -> None:
    handler = functools.partial(Ranges, directory=str(folder / "data"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        web = f"http://127.0.0.1:{server.server_port}"
        for kind in ("parquet", "arrow"):
            reader = Arrow(f"{web}/rows/day.{kind}", **COLUMNS_OF_ROWS)
            local = Arrow(str(folder / f"data/rows/day.{kind}"), **COLUMNS_OF_ROWS)
            assert same(reader.read(20, 100), local.read(20, 100))
        with pytest.raises(DataError, match="no such file"):
            Arrow(f"{web}/rows/none.parquet", **COLUMNS_OF_ROWS)
        server.shutdown()


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Python's server of files, with ranges."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file() or "Range" not in self.headers:
            super().do_GET()
            return
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        data = path.read_bytes()
        part = data[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, *_: object) -> None: ...

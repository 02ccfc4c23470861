"""The trace route reads span files into which a pod may have written anything."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from stretto_gateway.traces import spans as spans_module
from stretto_gateway.traces.spans import spans_of

TRACE = "a" * 32


def span(name: str, job: str = "ctr", **more: Any) -> dict[str, Any]:
    return {
        **{"trace_id": TRACE, "span_id": "b" * 16, "parent_id": None, "service": "x", "name": name},
        **{"start_s": 1, "end_s": 2.5, "attributes": {"stretto.job": job}, "error": None, **more},
    }


def write(file: Path, *lines: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def names(state: Path) -> list[str]:
    return [each["name"] for each in spans_of(state, "ctr", TRACE)]


def test_services_and_the_jobs_own_pods_are_read_and_no_other_jobs(tmp_path: Path) -> None:
    write(tmp_path / "spans/arbiter.jsonl", span("arbiter"), span("of another", job="other"))
    write(tmp_path / "spans/arbiter.jsonl.1", span("earlier"))
    write(tmp_path / "spans/ctr/worker-0.jsonl", span("worker"))
    write(tmp_path / "spans/other/worker-0.jsonl", span("planted"))
    assert names(tmp_path) == ["arbiter", "earlier", "worker"]


def test_pipes_and_links_are_passed_over(tmp_path: Path) -> None:
    """A pipe without a writer would hold the route for good."""
    write(tmp_path / "spans/ctr/worker-0.jsonl", span("worker"))
    write(tmp_path / "elsewhere/secret.jsonl", span("linked"))
    os.mkfifo(tmp_path / "spans/ctr/pipe.jsonl")
    (tmp_path / "spans/ctr/link.jsonl").symlink_to(tmp_path / "elsewhere/secret.jsonl")
    (tmp_path / "spans/ctr/folder.jsonl").mkdir()
    assert names(tmp_path) == ["worker"]
    os.rename(tmp_path / "spans/ctr", tmp_path / "spans/moved")
    (tmp_path / "spans/ctr").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path) == []


def test_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    write(tmp_path / "spans/ctr/worker-0.jsonl", span("worker"))
    with (tmp_path / "spans/ctr/huge.jsonl").open("wb") as file:
        file.truncate(600 << 20)
    tracemalloc.start()
    try:
        assert names(tmp_path) == ["worker"]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_bytes_and_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(json.dumps(span("a"))) + 1
    write(tmp_path / "spans/ctr/w.jsonl", *(span(name) for name in "abcd"))
    write(tmp_path / "spans/ctr/x.jsonl", *(span(name) for name in "efgh"))
    monkeypatch.setattr(spans_module, "FILE_BYTES_MAX", 2 * one)
    assert names(tmp_path) == ["a", "b", "e", "f"]
    monkeypatch.setattr(spans_module, "FOLDER_BYTES_MAX", 3 * one)
    assert names(tmp_path) == ["a", "b", "e"]
    monkeypatch.setattr(spans_module, "FILES_MAX", 1)
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize(
    "odd",
    [
        span("odd", attributes="x"),
        span("odd", attributes=["stretto.job"]),
        span("odd", attributes={"stretto.job": "ctr", "x": {"y": 1}}),
        span("odd", attributes={"stretto.job": "ctr", "x": [[1]]}),
        span("odd", start_s="soon"),
        span("odd", end_s=float("nan")),
        span("odd", service=7),
        span("odd", span_id=None),
        span("odd\ud800"),
        json.dumps(span("odd")).replace("2.5", "1e999"),
        json.dumps(span("odd"))[:-9],
        f'["{TRACE}"]',
        f'{{"trace_id": "{TRACE}", "attributes": ' + "[" * 30_000,
    ],
)
def test_odd_documents_are_passed_over(tmp_path: Path, odd: Any) -> None:
    write(tmp_path / "spans/ctr/worker-0.jsonl", odd, span("good"))
    assert names(tmp_path) == ["good"]

"""``stretto trace``: spans as a tree and as a trace."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from installed_gateway import Installed, write_spec
from rich.console import Console
from stretto_cli.commands.views import trace


def span(id: str, parent: str | None, name: str, start_s: float, end_s: float, **more: Any) -> trace.TraceSpan:
    return trace.TraceSpan("t", id, parent, "stretto-x", name, start_s, end_s, {}, more.get("error"))


def test_spans_become_a_tree_whatever_their_order_and_orphans_are_roots() -> None:
    spans = [span("c", "b", "leaf", 3, 4), span("b", "a", "middle", 2, 5), span("o", "lost", "orphan", 1, 2),
             span("a", None, "root", 0, 6), span("s", "s", "own parent", 5, 6)]  # fmt: skip
    roots = trace.tree(spans)
    assert [root.name for root in roots] == ["root", "orphan", "own parent"]
    assert [(row.depth, row.span.name) for row in trace.rows(roots)][:3] == [(0, "root"), (1, "middle"), (2, "leaf")]


def test_many_spans_of_one_name_are_folded_into_one_line() -> None:
    children = [span(f"c{i}", "a", "shard-leased", i, i + 1) for i in range(100)]
    rows = list(trace.rows(trace.tree([span("a", None, "root", 0, 200), *children])))
    assert [row.repeats for row in rows] == [0, 0, 0, 0, 97]
    assert rows[-1].until_s == 100
    assert len(list(trace.rows(trace.tree(children), everything=True))) == 100
    console = Console(width=120, record=True)
    console.print(trace.render(trace.tree(children)))
    assert "97 more shard-leased" in console.export_text()


def test_the_trace_of_a_job_begins_at_its_submission(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    document = json.loads(installed.stretto("trace", name, "-o", "json").stdout)
    assert [span["name"] for span in document["spans"]] == ["publish job-submitted"]
    hostile = installed.folder / "spans" / "hostile"
    hostile.mkdir(parents=True)
    os.mkfifo(hostile / "x.jsonl")  # a pod of any job may lay it into its folder
    try:
        assert "publish job-submitted" in installed.stretto("trace", name).stdout
    finally:
        shutil.rmtree(hostile)


def test_the_trace_is_shown_from_elsewhere_and_events_where_no_span_is_kept(
    installed: Installed, tmp_path: Path
) -> None:
    """Method: a folder of another machine, which has no spans; then the gateway's are gone, too."""
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    there = installed.elsewhere()
    document = json.loads(installed.stretto("trace", name, "-o", "json", *there).stdout)
    assert [span["name"] for span in document["spans"]] == ["publish job-submitted"]
    for path in (installed.folder / "spans").rglob("*.jsonl*"):
        path.write_text("")
    shown = installed.stretto("trace", name, *there)
    assert "job-submitted" in shown.stdout
    assert "events only" in shown.stderr

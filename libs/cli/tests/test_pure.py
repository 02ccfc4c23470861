"""Figures, waterfalls, stations and event streams without any process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from stretto_cli import figures, podlogs, waterfall
from stretto_cli.client import parse_events
from stretto_cli.demo import course, report
from stretto_cli.demo.stations import Course
from stretto_cli.errors import BadInput
from stretto_wire import JobSpec


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (900 * 2**20, "900 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_sizes(value: float | None, shown: str) -> None:
    assert figures.size(value) == shown


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=200), st.integers(-5, 80))
def test_a_sparkline_never_is_wider_than_asked(values: list[float], width: int) -> None:
    assert len(figures.sparkline(values, width)) <= max(0, width)


def test_events_are_parsed_around_comments_and_retry_hints() -> None:
    text = 'retry: 1000\n\n: still here\n\nid: 7\nevent: plan-decided\ndata: {"a":\ndata: 1}\n\n'
    events = list(parse_events(iter(text.split("\n"))))
    assert [(event.id, event.name, event.body) for event in events] == [(7, "plan-decided", {"a": 1})]


def span(id: str, parent: str | None, name: str, start_s: float, end_s: float, **more: Any) -> waterfall.Span:
    return waterfall.Span("t", id, parent, "stretto-x", name, start_s, end_s, {}, more.get("error"))


def test_spans_become_a_tree_whatever_their_order_and_orphans_are_roots() -> None:
    spans = [span("c", "b", "leaf", 3, 4), span("b", "a", "middle", 2, 5), span("o", "lost", "orphan", 1, 2),
             span("a", None, "root", 0, 6), span("s", "s", "own parent", 5, 6)]  # fmt: skip
    roots = waterfall.tree(spans)
    assert [root.name for root in roots] == ["root", "orphan", "own parent"]
    assert [(row.depth, row.span.name) for row in waterfall.rows(roots)][:3] == [
        (0, "root"),
        (1, "middle"),
        (2, "leaf"),
    ]


def test_many_spans_of_one_name_are_folded_into_one_line() -> None:
    children = [span(f"c{i}", "a", "shard-leased", i, i + 1) for i in range(100)]
    rows = list(waterfall.rows(waterfall.tree([span("a", None, "root", 0, 200), *children])))
    assert [row.repeats for row in rows] == [0, 0, 0, 0, 97]
    assert rows[-1].until_s == 100
    assert len(list(waterfall.rows(waterfall.tree(children), everything=True))) == 100
    console = Console(width=120, record=True)
    console.print(waterfall.render(waterfall.tree(children)))
    assert "97 more shard-leased" in console.export_text()


def test_a_span_file_with_a_torn_line_is_read_around_it(tmp_path: Path) -> None:
    (tmp_path / "spans").mkdir()
    good = '{"trace_id":"t1","span_id":"a","parent_id":null,"service":"x","name":"n","start_s":1,"end_s":2}'
    (tmp_path / "spans" / "x.jsonl").write_text(good + "\n" + good[:40] + "\n[1]\n")
    (tmp_path / "spans" / "y.jsonl.1").write_text(good.replace('"a"', '"b"') + "\n")
    assert sorted(span.span_id for span in waterfall.read(tmp_path, "t1")) == ["a", "b"]


def plan(workers: int, ps: int, ps_memory_bytes: int = 100) -> dict[str, Any]:
    return {"workers": workers, "ps": ps, "ps_memory_bytes": ps_memory_bytes}


def decided(version: int, kind: str, new: dict[str, Any], previous: dict[str, Any] | None) -> dict[str, Any]:
    return {"version": version, "kind": kind, "plan": new, "previous": previous, "reasons": ["similar to x", "y"]}


def test_a_station_that_did_not_happen_is_not_passed() -> None:
    seen = Course()
    seen.take("job-submitted", 100.0, {})
    seen.take("plan-decided", 101.0, decided(1, "warm-start", plan(1, 1), None))
    seen.take("plan-applied", 102.0, {"version": 1, "plan": plan(1, 1), "took_s": 1.0})
    # a shrink is no forecast acted on, an exit that we did not cause is no kill, an inexact end is no completion
    seen.take("plan-decided", 103.0, decided(2, "memory", plan(1, 1, 50), plan(1, 1, 100)))
    seen.take("pod-resized", 103.1, {"pod": "ps-0", "memory_bytes": 50})
    seen.take("pod-exited", 104.0, {"pod": "worker-0", "reason": "killed"})
    seen.take("pod-started", 105.0, {"pod": "worker-1", "role": "worker", "cause": "relaunch"})
    seen.take("migration-finished", 106.0, {"moved_bytes": 0, "took_s": 1.0, "longest_freeze_s": 0.0})
    seen.take(
        "job-finished", 107.0,
        {"samples_lost": 0, "samples_repeated": 1, "samples_applied": 10, "samples_expected": 10},
    )  # fmt: skip
    assert [name for name in seen.stations if seen.seen(name)] == ["warm-start"]
    assert seen.stations["warm-start"].seen_s == 1.0
    assert seen.ended == "finished"
    assert not seen.complete


def test_a_full_course_passes_every_station() -> None:
    seen = Course()
    seen.take("job-submitted", 0.0, {})
    seen.take("plan-decided", 1.0, decided(1, "warm-start", plan(1, 1), None))
    seen.take("profile-measured", 2.0, {"settled": True, "throughput": 5.0, "plan": plan(1, 1)})
    seen.take("model-fitted", 3.0, {"rmsle": 0.1, "points": 3})
    seen.take("plan-decided", 4.0, decided(2, "measure", plan(2, 1), plan(1, 1)))
    seen.take("plan-applied", 5.0, {"version": 2, "plan": plan(2, 1), "took_s": 1.0})
    seen.take("plan-decided", 6.0, decided(3, "measure", plan(2, 2), plan(2, 1)))
    seen.take("migration-finished", 7.0, {"moved_bytes": 9, "took_s": 1.0, "longest_freeze_s": 0.01})
    seen.take("plan-applied", 8.0, {"version": 3, "plan": plan(2, 2), "took_s": 1.0})
    seen.take("plan-decided", 9.0, decided(4, "memory", plan(2, 2, 300), plan(2, 2, 100)))
    seen.take("pod-resized", 9.1, {"pod": "ps-0", "memory_bytes": 300})
    seen.killed_pod = "worker-1"
    seen.take("pod-exited", 10.0, {"pod": "worker-1", "reason": "killed"})
    seen.take("shard-requeued", 10.1, {"pod": "worker-1"})
    seen.take("pod-started", 11.0, {"pod": "worker-2", "role": "worker", "cause": "relaunch"})
    seen.take(
        "job-finished", 12.0,
        {"samples_lost": 0, "samples_repeated": 0, "samples_applied": 10, "samples_expected": 10},
    )  # fmt: skip
    assert seen.complete


def view(**more: Any) -> dict[str, Any]:
    chosen = {**plan(1, 1), "worker_cpu_cores": 0.5, "ps_cpu_cores": 0.5, "worker_memory_bytes": 2**30}
    fast = {**chosen, "workers": 2}

    def decision(version: int, kind: str, of: dict[str, Any], rate: float | None, **rest: Any) -> dict[str, Any]:
        outcome = {"throughput": rate, "windows": 3, "prediction_error": 0.1, "inside_interval": True, "took_s": 1.0}
        return {
            "version": version, "kind": kind, "plan": of, "reasons": [], "throughput_before": 50.0, "throughput": 90.0,
            "throughput_interval": {"low": 80.0, "high": 100.0}, "outcome": outcome, "forecast": None, **rest,
        }  # fmt: skip

    forecast = {
        "ps": [{
            "pod": "ps-0", "used_bytes": 50, "limit_bytes": 100, "oom_in_s": 9.0, "at_end_bytes": 150,
            "at_end_interval_bytes": {"low": 140.0, "high": 160.0},
        }]
    }  # fmt: skip
    books = {
        "samples_expected": 10, "samples_applied": 10, "samples_lost": 0, "samples_repeated": 0,
        "samples_abandoned": 0, "repeats_recognised": 3, "rows": 5, "evaluation": {"loss": 0.4, "auc": 0.8},
    }  # fmt: skip
    return {
        "name": "x", "status": "finished", "reason": "", "plan": chosen, "books": books, "migrations": [],
        "submitted_at_s": 1.0, "ended_at_s": 9.0, "pods": {"ps-0": {"memory_used_bytes": 148}},
        "decisions": [
            decision(1, "warm-start", chosen, 50.0), decision(2, "measure", fast, 95.0),
            decision(3, "memory", chosen, None, forecast=forecast),
        ],
        "phases": [
            {"kind": "steady", "plan_version": 1, "detail": "plan 1", "started_at_s": 1.0, "ended_at_s": 4.0,
             "longest_gap_s": 0.1, "longest_gap_pod": "worker-0", "reports": 3},
            {"kind": "applying", "plan_version": 2, "detail": "plan 2", "started_at_s": 4.0, "ended_at_s": None,
             "longest_gap_s": None, "longest_gap_pod": None, "reports": 0},
        ],
        **more,
    }  # fmt: skip


def passed_course() -> Course:
    seen = Course()
    for station in seen.stations.values():
        station.seen_s = 1.0
    return seen


def test_the_summary_compares_what_was_forecast_with_what_came() -> None:
    summary = report.build(view(), view(), passed_course(), {"ready_s": 4.0}, 100.0)
    assert summary["passed"] is True
    assert [d["throughput_after"] for d in summary["decisions"]] == [50.0, 95.0, None]
    assert [(p["phase"], p["longest_gap_s"]) for p in summary["pauses"]] == [("steady", 0.1)]
    assert [(w["at_end_bytes"], w["came_bytes"]) for w in summary["forecasts"]] == [(150, 148)]
    assert summary["quality"]["reference"]["auc"] == 0.8
    assert report.good_plan(view())["workers"] == 2
    console = Console(width=160, record=True)
    console.print(report.tables(summary))
    told = console.export_text()
    for words in ("0 lost, 0 repeated", "0.40000", "passed", "95/s", "100 ms"):
        assert words in told, words


def test_a_slow_demonstration_says_so_and_passes() -> None:
    slow = report.build(view(), view(), passed_course(), {"ready_s": 4.0}, 361.0)
    assert slow["passed"] is True
    assert slow["bars"] == [{"name": "took_s", "value": 361.0, "bar": 360.0, "met": False}]
    console = Console(width=160, record=True)
    console.print(report.tables(slow))
    assert "missed" in console.export_text()
    assert report.build(view(), view(), passed_course(), {"ready_s": 4.0}, 359.0)["bars"][0]["met"] is True


@pytest.mark.parametrize(
    ("elastic", "reference"),
    [
        ({"books": {**view()["books"], "samples_lost": 1}}, {}),
        ({"books": {**view()["books"], "samples_repeated": 1}}, {}),
        ({"books": None, "status": "failed"}, {}),
        ({"books": {**view()["books"], "samples_applied": 9}}, {}),
        ({}, {"status": "failed"}),
        ({}, {"books": {**view()["books"], "samples_lost": 1}}),
        ({}, {"books": {**view()["books"], "samples_repeated": 1}}),
        ({}, {"books": None}),
        ({}, None),
    ],
)
def test_the_summary_does_not_pass_when_anything_is_wrong(
    elastic: dict[str, Any], reference: dict[str, Any] | None
) -> None:
    other = None if reference is None else view(**reference)
    summary = report.build(view(**elastic), other, passed_course(), {"ready_s": 4.0}, 1.0)
    assert summary["passed"] is False
    Console(record=True).print(report.tables(summary))
    unseen = report.build(view(), view(), Course(), {"ready_s": 4.0}, 1.0)
    assert unseen["passed"] is False


def test_the_demonstration_states_no_resources_and_its_reference_is_the_same_data() -> None:
    elastic = JobSpec.parse(course.job())
    assert "resources" not in course.job()
    chosen = {
        "workers": 2, "ps": 2, "worker_cpu_cores": 0.5, "ps_cpu_cores": 0.5, "worker_memory_bytes": 2**30,
        "ps_memory_bytes": 2**30,
    }  # fmt: skip
    reference = JobSpec.parse(course.reference(chosen))
    assert reference.resources.fixed
    assert (reference.dataset, reference.model, reference.evaluate) == (
        elastic.dataset,
        elastic.model,
        elastic.evaluate,
    )
    assert elastic.dataset.samples == elastic.model.arguments["samples"] == elastic.model.metadata["samples"]


def test_the_example_jobs_are_valid() -> None:
    import yaml

    examples = Path(__file__).parents[2] / "trainer" / "stretto" / "examples"
    files = sorted(examples.glob("*.yaml"))
    assert files
    for file in files:
        spec = JobSpec.parse(yaml.safe_load(file.read_text()))
        assert spec.model.entry.startswith("stretto.examples.")


def test_submit_says_what_a_job_that_starts_from_a_checkpoint_trains() -> None:
    from stretto_cli.commands.jobs import _note

    def note(dataset: dict[str, Any], **checkpoint: str) -> str:
        document = {"name": "b", "model": {"entry": "m:M"}, "dataset": {"samples": 10, **dataset}}
        spec = JobSpec.parse({**document, "checkpoint": checkpoint})
        return _note(Path("b.yaml"), {"job": "b", "status": "submitted", "created": True}, spec)

    assert "\n" not in note({"name": "clicks/1"})
    assert "trains every sample: dataset.name is not stated" in note({}, restore_from="file:///a/manifest.json")
    assert "if that is of dataset clicks/1" in note({"name": "clicks/1"}, restore_from="file:///a/manifest.json")


@pytest.mark.parametrize(("pods", "more"), [(podlogs.SHOWN, ""), (podlogs.SHOWN + 3, " and 3 more")])
def test_pods_that_are_not_listed_are_counted(pods: int, more: str, tmp_path: Path) -> None:
    for number in range(pods):
        (tmp_path / "pods" / "job" / f"worker-{number}").mkdir(parents=True)
        (tmp_path / "pods" / "job" / f"worker-{number}" / "log").touch()
    with pytest.raises(BadInput) as refused:
        podlogs.find(tmp_path, "nobody", None)
    told = str(refused.value)
    assert told.count("job/worker-") == podlogs.SHOWN
    assert told.partition("logs are there of ")[2].count(" and ") == bool(more)
    assert told.endswith(more)

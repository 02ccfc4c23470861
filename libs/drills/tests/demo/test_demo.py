"""The stations of the demonstration, its summary and its job, without any process."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from stretto_drills.demo import course, report
from stretto_drills.demo.stations import DemoCourse, StoreCourse
from stretto_wire import JobSpec


def plan(workers: int, ps: int, ps_memory_bytes: int = 100) -> dict[str, Any]:
    return {"workers": workers, "ps": ps, "ps_memory_bytes": ps_memory_bytes}


def decided(version: int, kind: str, new: dict[str, Any], previous: dict[str, Any] | None) -> dict[str, Any]:
    return {"version": version, "kind": kind, "plan": new, "previous": previous, "reasons": ["similar to x", "y"]}


def test_a_station_that_did_not_happen_is_not_passed() -> None:
    seen = DemoCourse()
    seen.take("job-submitted", 100.0, {})
    seen.take("plan-decided", 101.0, decided(1, "warm-start", plan(1, 1), None))
    seen.take("plan-applied", 102.0, {"version": 1, "plan": plan(1, 1), "took_s": 1.0})
    # a shrink is no forecast acted on, an exit that we did not cause no kill and no loss, an inexact end no completion
    seen.take("plan-decided", 103.0, decided(2, "memory", plan(1, 1, 50), plan(1, 1, 100)))
    seen.take("pod-resized", 103.1, {"pod": "ps-0", "memory_bytes": 50})
    seen.take("pod-exited", 104.0, {"pod": "worker-0", "reason": "killed"})
    seen.take("columns-restored", 104.1, {"columns": 38})
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
    seen = DemoCourse()
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
    seen.killed_server = "ps-1"
    seen.take("pod-exited", 11.2, {"pod": "ps-1", "reason": "killed"})
    seen.take("columns-restored", 11.7, {"columns": 38})
    assert seen.stations["loss"].what == "38 columns after 0.5 s; nobody else stopped"
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


def passed_course() -> DemoCourse:
    seen = DemoCourse()
    for station in seen.stations.values():
        station.seen_s = 1.0
    return seen


def test_the_summary_compares_what_was_forecast_with_what_came() -> None:
    summary = report.build(view(), view(), passed_course().stations, 4.0, 100.0)
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


def test_without_the_reference_it_passes_by_the_elastic_job_alone() -> None:
    alone = report.build(view(), None, passed_course().stations, 4.0, 100.0, compared=False)
    assert alone["passed"] is True
    assert "reference" not in alone["stations"]
    assert report.build(view(), None, passed_course().stations, 4.0, 100.0)["passed"] is False
    console = Console(width=160, record=True)
    console.print(report.tables(alone))
    assert "of the reference" not in console.export_text()


def test_a_slow_demonstration_says_so_and_passes() -> None:
    slow = report.build(view(), view(), passed_course().stations, 4.0, 211.0)
    assert slow["passed"] is True
    assert slow["bars"] == [{"name": "took_s", "value": 211.0, "bar": 210.0, "met": False}]
    console = Console(width=160, record=True)
    console.print(report.tables(slow))
    assert "missed" in console.export_text()
    assert report.build(view(), view(), passed_course().stations, 4.0, 209.0)["bars"][0]["met"] is True


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
    summary = report.build(view(**elastic), other, passed_course().stations, 4.0, 1.0)
    assert summary["passed"] is False
    Console(record=True).print(report.tables(summary))
    unseen = report.build(view(), view(), DemoCourse().stations, 4.0, 1.0)
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


def queue(lanes: int, read_share: float) -> dict[str, Any]:
    return {"lanes": lanes, "read_share": read_share}


def profile(rate: float, lanes: int, read_share: float, cold_rows: int = 0) -> dict[str, Any]:
    server = {"cold_rows": cold_rows, "categories": 8000, "rows_pulled": 500, "rows_read": cold_rows // 100}
    found = {"settled": True, "throughput": rate, "feed": queue(lanes, read_share), "prepared_elsewhere": 0.9}
    found["ps"] = [server]
    return found if lanes else {**found, "prepared_elsewhere": 0.0}


def test_data_workers_count_as_come_and_gone_only_in_their_order() -> None:
    seen = StoreCourse()
    finished = {"samples_lost": 0, "samples_repeated": 0, "samples_applied": 12}
    events: list[tuple[str, dict[str, Any], set[str]]] = [
        ("profile-measured", profile(20_000.0, 0, 0.0), set()),
        ("data-workers-changed", {"data_workers": []}, set()),
        ("profile-measured", profile(8_000.0, 0, 0.6), set()),
        ("data-workers-decided", {"count": 2}, set()),
        ("data-workers-changed", {"data_workers": [{}]}, set()),
        ("data-workers-changed", {"data_workers": [{}, {}]}, {"feeding"}),
        ("profile-measured", profile(7_000.0, 2, 0.0), {"feeding"}),
        ("profile-measured", profile(19_000.0, 2, 0.0), {"feeding", "fed"}),
        ("profile-measured", profile(19_000.0, 2, 0.0, 2000), {"feeding", "fed", "spilled"}),
        ("data-workers-decided", {"count": 1}, {"feeding", "fed", "spilled"}),
        ("data-workers-changed", {"data_workers": [{}]}, {"feeding", "fed", "spilled", "unfed"}),
        ("job-finished", finished, {"feeding", "fed", "spilled", "unfed", "exact"}),
    ]
    seen.take("job-submitted", 1.0, {})
    for name, data, passed in events:
        seen.take(name, 2.0, data)
        assert {key for key in seen.stations if seen.seen(key)} == passed, name
    assert "8,000 → 19,000 samples/s" in seen.stations["fed"].what
    assert seen.stations["spilled"].what == "2,000 of 8,000 rows; 4.0% of the rows of a step are read"
    assert seen.ended == "finished"
    inexact = StoreCourse()
    inexact.take("job-finished", 2.0, {**finished, "samples_lost": 1})
    assert not inexact.seen("exact")

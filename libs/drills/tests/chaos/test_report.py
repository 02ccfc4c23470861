"""Effects of a fault on training, read from telemetry, in the report and the timeline."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_drills.chaos import effects, report, timeline
from stretto_drills.chaos.course import Happening, JobEnd
from stretto_drills.chaos.record import StreamRecord
from stretto_drills.chaos.schedule import FAULTS, Intensity, draw
from stretto_messages.actuator import MigrationFinished, MigrationStarted, PodExited, PodStarted, ServersChanged
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobProgressed
from stretto_messages.pods import WorkerReported
from stretto_messages.values import Plan, StepTimes
from stretto_wire.contract.registry import subject_of

T0 = 1_795_000_000.0
GIB = 2**30
TIMES = StepTimes(emb_s=0, grad_s=0.02, upd_s=0, sync_s=0)


def reported(pod: str, ended_s: float, steps: int, gap_s: float, total: int) -> WorkerReported:
    """A window of a second, relative to T0; its steps take 20 ms, and the pause comes first."""
    step_s = (gap_s + 0.02 * (steps - 1)) / steps if steps else 0.0
    return WorkerReported(
        job="j", pod=pod, plan_version=1, ended_at_s=T0 + ended_s, window_s=1.0, steps=steps, steps_total=total,
        samples_total=total * 512, step_time_s=step_s, longest_gap_s=gap_s, times=TIMES, cpu_used_cores=1,
        cpu_limit_cores=1, memory_used_bytes=1, memory_limit_bytes=2,
    )  # fmt: skip


def steady(pod: str, begin: int, end: int, total: int = 0) -> list[WorkerReported]:
    return [reported(pod, second, 50, 0.02, total + 50 * (n + 1)) for n, second in enumerate(range(begin + 1, end + 1))]


def test_training_that_never_stops_has_no_stall() -> None:
    reports = [*steady("worker-0", 0, 20), *steady("worker-1", 0, 5), *steady("worker-2", 9, 20)]
    assert effects.stalls(reports, T0 + 20) == []
    seen = effects.effect(T0 + 5, T0 + 12, reports, [])
    assert seen == effects.Effect(pause_s=0.02, stall_s=0.0)


def test_a_stall_ends_with_the_first_step_after_it_not_with_its_window() -> None:
    """All workers wait 4 s for their parameters; in the window in which they go on, the last 0.5 s are steps."""
    silent = [reported("worker-0", second, 0, 0.0, 250) for second in (6, 7, 8, 9)]
    again = reported("worker-0", 10, 25, 4.5, 275)
    reports = [*steady("worker-0", 0, 5), *silent, again, *steady("worker-0", 10, 15, 275)]
    [stall] = effects.stalls(reports, T0 + 15)
    assert stall.begin_s == T0 + 5
    assert stall.end_s == pytest.approx(T0 + 9.5, abs=0.05)
    seen = effects.effect(T0 + 5.2, T0 + 8.2, reports, [stall])
    assert seen.stall_s == pytest.approx(4.3, abs=0.05)
    assert seen.pause_s == pytest.approx(4.5, abs=0.05)


def test_what_begins_long_after_the_healing_or_with_the_next_fault_is_no_effect_of_a_fault() -> None:
    until_s = effects.effect_ends(T0 + 5, T0 + 6, [T0 + 1, T0 + 5.1, T0 + 40])
    assert until_s == T0 + 6 + effects.AFTER_S
    late = effects.TimeSpan(T0 + 30, T0 + 40)
    assert effects.effect(T0 + 5, until_s, steady("worker-0", 0, 30), [late]) == effects.Effect(0.02, 0.0)
    assert effects.effect_ends(T0 + 5, T0 + 60, [T0 + 20]) == T0 + 20
    assert effects.effect_ends(T0 + 5, None, []) == T0 + 5 + effects.AFTER_S


def test_a_job_that_never_goes_on_is_silent_to_its_end() -> None:
    [stall] = effects.stalls(steady("worker-0", 0, 5), T0 + 60)
    assert (stall.begin_s, stall.end_s) == (T0 + 5, T0 + 60)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.floats(0, 5)), max_size=40))
def test_throughput_spreads_every_sample_once(rows: list[tuple[int, int, float]]) -> None:
    reports: list[WorkerReported] = []
    total = 0
    for second, steps, gap_s in sorted(set(rows), key=lambda row: row[0]):
        total += steps
        reports.append(reported("worker-0", second, steps, gap_s if steps else 0.0, total))
    trained = sum(rate * effects.BIN_S for _, rate in effects.throughput(reports, T0 - 10, T0 + 70))
    in_steps = [r for r in reports if r.steps]
    assert trained == pytest.approx(in_steps[-1].samples_total if in_steps else 0, rel=1e-6)


# the report ----------------------------------------------------------------------------------------------------

PLAN = Plan(workers=2, ps=2, worker_cpu_cores=0.5, ps_cpu_cores=0.5, worker_memory_bytes=GIB, ps_memory_bytes=GIB)


def story() -> list[tuple[float, Message]]:
    """A job of two workers, of which one is killed while parameters move to a third server."""
    decided: dict[str, Any] = {
        "throughput": None, "throughput_interval": None, "throughput_before": None, "cost_per_hour": 0.1,
        "reasons": ("r",), "alternatives": (), "algorithm": "a", "free_cpu_cores": 1.0, "free_memory_bytes": 1,
    }  # fmt: skip
    wider = replace(PLAN, ps=3)
    pods: list[tuple[float, Message]] = [
        (2.0, PodStarted(job="j", pod=name, role=role, plan_version=1, address="a:1", cpu_cores=0.5,
                         memory_bytes=GIB, took_s=1, cause="plan"))
        for name, role in (("ps-0", "ps"), ("ps-1", "ps"), ("worker-0", "worker"), ("worker-1", "worker"))
    ]  # fmt: skip
    progressed = [
        (float(second), JobProgressed(job="j", samples_done=second * 1000, samples_total=20_000, epoch=0,
                                      samples_per_s=1000, shards_leased=2, shards_requeued_total=0))
        for second in range(2, 20)
    ]  # fmt: skip
    return sorted(
        [
            (1.0, PlanDecided(job="j", version=1, kind="initial", plan=PLAN, previous=None, **decided)),
            *pods,
            *progressed,
            (5.0, PlanDecided(job="j", version=2, kind="requested", plan=wider, previous=PLAN, **decided)),
            (6.0, MigrationStarted(job="j", plan_version=2, cause="plan", sources=("ps-0", "ps-1"),
                                   destinations=("ps-2",), buckets=20)),
            (7.0, PodExited(job="j", pod="worker-1", role="worker", reason="killed", exit_code=137)),
            (8.0, MigrationFinished(job="j", plan_version=2, buckets=20, moved_bytes=2**20, took_s=2,
                                    longest_freeze_s=0.05)),
            (12.0, ServersChanged(job="j", version=3, servers=())),
        ],
        key=lambda pair: pair[0],
    )  # fmt: skip


def outcome() -> JobEnd:
    record = StreamRecord("j")
    rows = [*story(), *((r.ended_at_s - T0, r) for r in steady("worker-0", 2, 20))]
    for seq, (time_s, message) in enumerate(sorted(rows, key=lambda row: row[0]), start=1):
        record.take(seq, T0 + time_s, subject_of(message), message)
    schedule = draw(5, Intensity.ROUGH, list(FAULTS))
    happenings = [Happening(one) for one in schedule.planned]
    for index, one in enumerate(happenings):
        one.on, one.at_s, one.healed_s, one.well = "worker-1 <&>", T0 + 3 + index, T0 + 4 + 2 * index, True
    happenings[-1].skipped = "every sample was trained before it could begin"
    happenings[0].healed_s, happenings[0].well = None, False
    return JobEnd(schedule, record, happenings, T0, T0 + 20, None, "given up at 95%")


def test_the_record_knows_who_runs_and_what_moves() -> None:
    record = outcome().record
    assert record.running("worker") == ["worker-0"]
    assert record.running("ps") == ["ps-0", "ps-1"]
    assert (record.plan or {})["ps"] == 3
    assert record.migration is None
    assert record.share == pytest.approx(0.95)


def test_a_job_whose_books_cannot_be_had_is_not_exact() -> None:
    document = report.build([outcome()], {"command": "stretto chaos --seed 5"})
    [one] = document["runs"]
    assert (document["passed"], one["exact"], one["books"], one["status"]) == (False, False, None, "given up")
    assert one["counts"]["migrations"] == 1
    assert one["counts"]["pods_lost"] == 1
    assert one["happenings"][0]["healed"] is False
    assert one["happenings"][-1]["longest_pause_s"] is None


def test_the_timeline_is_one_sound_file_that_loads_nothing() -> None:
    outcomes = [outcome(), JobEnd(None, StreamRecord("calm-1"), [], T0, T0 + 1, None)]
    page = timeline.page(report.build(outcomes, {"command": "stretto chaos --seed 5"}), outcomes)
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    [figure, _] = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    root = ElementTree.fromstring(figure)  # well-formed, though a pod is called <&>
    titles = [element.text or "" for element in root.iter("title")]
    assert any(title.startswith("worker-1: from 2.0 s, killed") for title in titles)
    assert any("20 buckets" in title and "longest freeze 50 ms" in title for title in titles)
    assert any("not healed" in title for title in titles)
    for element in root.iter():
        for name in ("x", "y", "width", "height"):
            assert element.get(name) is None or float(element.attrib[name]) >= 0

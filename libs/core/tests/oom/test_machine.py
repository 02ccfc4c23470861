"""The memory watch against generated growth (curves.py), and case by case where the truth is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from curves import BUCKETS, FAMILIES, Curve, generate, split, with_surge
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oom_builders import limit_decided, measured, progressed, server_exited, server_measured
from play import Case, play
from pydantic import TypeAdapter
from stretto_core.algorithms import OOM
from stretto_core.machine import Action, Emit
from stretto_core.oom.growth import Estimate, GrowthPoint, add_point, fit_growth
from stretto_core.oom.line import fit_line
from stretto_core.oom.machine import OomMachine
from stretto_core.oom.state import JobOpened, WatchError, WatchSettings, WatchState
from stretto_core.oom.usage import ServerUsage, UsagePoint, bytes_at, row_cost
from stretto_messages.actuator import JobFailed, PodResized
from stretto_messages.base import example_of
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.oom import OomForecast

MIB = 2**20


@pytest.mark.proof
@pytest.mark.parametrize("family", FAMILIES)
def test_no_curve_runs_out_of_memory_and_little_is_held_that_is_not_needed(family: str) -> None:
    """A few of the benchmark's curves (tests/bench/decisions/memory.py plays 200 of them, and others)."""
    curves = [generate(family, seed, moments=90) for seed in range(500, 503)]
    played = [play(curve, Case.draw(seed)) for seed, curve in enumerate(curves)]
    assert [outcome.oom_at for outcome in played] == [None] * len(played)
    assert all(outcome.foreseen for outcome in played if outcome.would_oom)
    assert np.mean([outcome.end_over for outcome in played]) <= 0.2
    assert np.mean([outcome.mean_over for outcome in played]) <= 0.25


@pytest.mark.proof
@pytest.mark.parametrize("family", ["steady", "skewed"])
def test_memory_that_is_not_needed_is_given_back(family: str) -> None:
    curves = [curve for seed in range(6) if not (curve := generate(family, seed)).changes]
    played = [play(curve, Case(share=-3.0)) for curve in curves[:2]]
    assert all(outcome.began_over > 1.9 and outcome.oom_at is None for outcome in played)
    assert np.mean([outcome.end_over for outcome in played]) <= 0.15
    assert max(outcome.end_over for outcome in played) <= 0.25


@pytest.mark.proof
@pytest.mark.parametrize(("family", "seed"), [("steady", 6), ("bursty", 1), ("late-surge", 10)])
def test_a_surge_that_nobody_foresaw_costs_speed_and_no_server_where_rows_may_go_to_disk(
    family: str, seed: int
) -> None:
    curve, case = with_surge(generate(family, seed), seed), Case.draw(4 * seed + FAMILIES.index(family))
    assert play(curve, case).oom_at is not None
    kept = play(curve, replace(case, spills=True))
    assert kept.oom_at is None
    assert 1 < kept.slowest < 3


@given(
    gains=st.lists(st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.1, 1.0]), min_size=50, max_size=80),
    share=st.floats(0.02, 0.9),
    resize=st.integers(1, 3),
    servers=st.integers(1, 5),
    scale=st.floats(1e3, 1e5),
)
@settings(max_examples=25)
@pytest.mark.proof
def test_whatever_grows_foreseeably_does_not_run_out(
    gains: list[float], share: float, resize: int, servers: int, scale: float
) -> None:
    """No law at all: windows in which nothing comes, or anything. An OOM is left to what nobody could foresee."""
    rows = np.cumsum(np.array([1.0, *gains]))[:, None] * np.full(BUCKETS, scale / BUCKETS)
    samples = 10_000 * np.arange(1, len(rows) + 1)
    noise = np.zeros((len(rows), BUCKETS))
    curve = Curve("any", samples, rows, 5e7, 200.0, noise, tuple(split(BUCKETS, servers)))
    outcome = play(curve, Case(share, resize))
    assert not outcome.oom_foreseeable


@given(exponent=st.floats(0.3, 1.0), scale=st.floats(10, 1e6), points=st.integers(6, 60), factor=st.floats(1.0, 4.0))
@example(exponent=0.3, scale=11.0, points=7, factor=1.0000000000000002)
@settings(max_examples=60)
def test_pure_power_laws_are_continued(exponent: float, scale: float, points: int, factor: float) -> None:
    samples = np.unique(np.linspace(1000, 100_000, points).astype(int))
    history: list[GrowthPoint] = []
    for count in samples:
        add_point(history, int(count), int(scale * count**exponent))
    growth = fit_growth(history)
    end = samples[-1] * factor
    truth = scale * end**exponent
    found = growth.at(end)
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(truth, rel=0.1)
    assert found.low <= truth * 1.02
    assert truth <= found.high * 1.02


@given(categories=st.lists(st.integers(0, 10**12), min_size=3, max_size=200), ahead=st.floats(0, 1e6))
@settings(max_examples=80)
def test_any_history_gives_a_finite_ordered_forecast_not_below_the_stock(categories: list[int], ahead: float) -> None:
    points: list[GrowthPoint] = []
    for index, count in enumerate(categories):
        add_point(points, 1000 * (index + 1), count)
    growth = fit_growth(points)
    found = growth.at(growth.samples * (1 + ahead))
    assert all(np.isfinite([found.low, found.mean, found.high]))
    assert categories[-1] <= found.low <= found.mean <= found.high


def test_a_line_goes_on_as_lately_whatever_slows_down() -> None:
    points = [GrowthPoint(1000 * n, round(1e4 * n**0.5)) for n in range(1, 200)]
    line, growth = fit_line(points), fit_growth(points)
    truth = 1e4 * 600**0.5
    assert growth.at(600_000).mean == pytest.approx(truth, rel=0.1)
    assert line.at(600_000).mean > 1.15 * truth
    assert line.at(1000).mean == points[-1].categories, "what is past does not change"
    assert fit_line(points[:2]) is None


@pytest.mark.proof
def test_the_watch_asks_for_what_its_law_foresees() -> None:
    """Growth that slows down: the published line asks for more."""
    asked = {}
    for name in OOM.names():
        watch = OomMachine(law=OOM.named(name))
        watch.handle(JobOpened(600_000, 1, 2**40), 0.0)
        told = list[OomForecast]()
        for n in range(1, 201):
            rows = round(1e4 * n**0.5)
            watch.handle(progressed(1000 * n, 600_000, 1000.0), float(n))
            seen = measured((server_measured("ps-0", 10**8 + 1000 * rows, 2**31, rows, 64, 1000.0),))
            told += [action.fact for action in watch.handle(seen, float(n)) if isinstance(action, Emit)]
        asked[name] = told[-1].ps[0].at_end_bytes
    assert asked["growth"] == pytest.approx(10**8 + 1000 * 1e4 * 600**0.5, rel=0.05)
    assert asked["linear"] > 1.15 * asked["growth"]


def test_history_is_bounded_and_follows_a_restore() -> None:
    points: list[GrowthPoint] = []
    for index in range(5000):
        add_point(points, index + 1, index)
    assert len(points) <= 96
    add_point(points, 100, 80)
    assert [point.samples for point in points[-1:]] == [100]
    assert all(first.samples < second.samples for first, second in pairwise(points))


class Watch:
    """A memory watch with a clock."""

    def __init__(self, row_bytes: float = 144.0, total: int = 1_000_000, most: int = 2**40) -> None:
        self.machine = OomMachine(None, WatchSettings(lead_s=10, shrink_patience_s=20))
        self.now = 1000.0
        self.machine.handle(JobOpened(total, 64 * MIB, most), self.now)
        self.row_bytes, self.total = row_bytes, total

    def measure(
        self, samples: int, used: list[int], limit: int, rows: list[int], buckets: int = 32, settled: bool = True
    ) -> OomForecast | None:
        self.now += 5
        servers = tuple(
            server_measured(f"ps-{i}", u, limit, r, buckets, self.row_bytes)
            for i, (u, r) in enumerate(zip(used, rows, strict=True))
        )
        self.machine.handle(progressed(samples, self.total, 1000.0), self.now)
        return said(self.machine.handle(measured(servers, settled), self.now))

    def grow(
        self, limit: int, steps: range, rows: int = 2000, base: int = 600 * MIB, servers: int = 2, buckets: int = 32
    ) -> list[OomForecast]:
        """Measure servers whose rows grow by ``rows`` each 10,000 samples; return what was told."""
        told = list[OomForecast | None]()
        for k in steps:
            used = base + int(self.row_bytes) * rows * k
            told.append(self.measure(10_000 * k, [used] * servers, limit, [rows * k] * servers, buckets))
        return [forecast for forecast in told if forecast]


def said(actions: list[Action]) -> OomForecast | None:
    facts = [action.fact for action in actions if isinstance(action, Emit)]
    return facts[-1] if facts else None


def test_time_and_samples_to_oom() -> None:
    """2,000 rows of 14.4 kB each 10,000 samples: 27.5 MiB a window; 900 MiB are full after 109,000 samples."""
    told = Watch(row_bytes=14_400.0).grow(900 * MIB, range(1, 11))
    for forecast in told:
        server = forecast.ps[0]
        # three windows do not show that growth is linear: it may be as sub-linear as is usual
        if forecast.samples_done < 50_000:
            assert 100_000 <= server.oom_at_samples <= 140_000
            continue
        assert server.oom_at_samples == pytest.approx(109_000, rel=0.06)
        assert server.oom_in_s == pytest.approx(109 - forecast.samples_done / 1000, abs=6)
    assert any(forecast.action == "grow" for forecast in told)
    assert "reaches its limit of 0.88 GiB" in next(f for f in told if f.action == "grow").reason


def test_it_speaks_when_there_is_news_only() -> None:
    told = Watch().grow(4096 * MIB, range(1, 41))
    assert 3 <= len(told) <= 10  # 200 s: the first words, then one in 30 s
    assert {forecast.action for forecast in told} <= {"none", "shrink"}


def test_a_worker_that_does_not_come_leaves_memory_watched() -> None:
    """While a plan is not reached the profile is not settled, for minutes if a pod cannot be placed; tables grow on."""
    watch = Watch(row_bytes=14_400.0)
    told = [
        watch.measure(10_000 * k, [600 * MIB + 14_400 * 2000 * k] * 2, 900 * MIB, [2000 * k] * 2, settled=k < 4)
        for k in range(1, 11)
    ]
    assert any(forecast.action == "grow" for forecast in told[4:] if forecast)


def test_resident_memory_is_the_base_and_what_the_tables_tell() -> None:
    """One reading with an image in memory does not move the level, and the rows to come cost what is told of a row."""
    server = ServerUsage()
    for rows, base in ((10_000, 45 * MIB), (20_000, 45 * MIB), (30_000, 300 * MIB)):
        server.add(UsagePoint(rows, base + 150 * rows, 150 * rows, 152.0), 2**40, 64)
    after = bytes_at(server, Estimate(10**6, 10**6, 10**6), row_cost([server]))
    assert after.mean == 45 * MIB + 150 * 30_000 + 152 * 10**6
    assert after.low < after.mean < after.high


def test_what_is_known_of_a_servers_memory_is_narrow_where_its_base_stands_still() -> None:
    """Nothing but the base, the pages ahead and the index is left to chance."""
    server = ServerUsage()
    for rows in (10_000, 20_000, 30_000):
        server.add(UsagePoint(rows, 45 * MIB + 150 * rows, 150 * rows, 152.0), 2**40, 64)
    after = bytes_at(server, Estimate(10**6, 10**6, 10**6), row_cost([server]))
    assert 0.01 < after.high / after.mean - 1 < 0.02
    assert after.high - after.mean == pytest.approx(after.mean - after.low)


def test_new_rows_of_a_wider_table_cost_more_than_the_rows_that_are_there() -> None:
    """10,000 rows of 100 bytes, then as many of 300 as come: a mean over all rows would foretell too little."""
    server = ServerUsage()
    for wide in (0, 5_000, 10_000, 20_000):
        rows, payload = 10_000 + wide, 10_000 * 100 + wide * 300
        server.add(UsagePoint(rows, 45 * MIB + payload, payload, payload / rows), 2**40, 64)
    cost = row_cost([server])
    assert cost.bytes == pytest.approx(300, rel=0.1)
    assert cost.bytes + 1.645 * cost.sd > 300


def test_a_server_without_rows_is_told_what_its_rows_will_cost() -> None:
    server = ServerUsage()
    server.add(UsagePoint(0, 45 * MIB, 0, 92.6), 2**40, 64)
    assert row_cost([server]).bytes == 92.6
    assert row_cost([ServerUsage()]).bytes == 0


def test_a_move_of_buckets_starts_a_servers_series_anew() -> None:
    watch = Watch(row_bytes=1440.0)
    watch.grow(4096 * MIB, range(1, 12), 3000)
    watch.measure(115_000, [605 * MIB, 605 * MIB, 602 * MIB], 4096 * MIB, [22_000] * 3, 21, settled=False)
    forecast = watch.grow(4096 * MIB, range(12, 25), servers=3, buckets=21)[-1]
    assert len(forecast.ps) == 3
    truth = 600 * MIB + 1440 * 200_000
    assert forecast.ps[2].at_end_bytes == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("limit", [950 * MIB, 1000 * MIB])
def test_the_whole_need_is_told_when_it_is_more_than_one_server_may_have(limit: int) -> None:
    """The one who decides cannot spread the buckets over more servers when it hears the maximum only."""
    watch = Watch(row_bytes=14_400.0, most=1000 * MIB)
    told = watch.grow(limit, range(1, 13))
    asked = [forecast for forecast in told if forecast.action == "grow"]
    assert asked
    assert max(forecast.recommended_ps_memory_bytes for forecast in asked) > 1000 * MIB
    assert any("more servers have to share it" in forecast.reason for forecast in asked)
    assert asked[-1].base_bytes == pytest.approx(600 * MIB, abs=2 * MIB)


def test_what_a_restore_undid_is_no_part_of_the_curve() -> None:
    """The first life was of other data: with its points the second one's end would be far off."""
    watch = Watch(row_bytes=1440.0)
    watch.grow(8192 * MIB, range(1, 12), 9000)
    watch.machine.handle(progressed(5_000, watch.total, 1000.0), watch.now)
    assert [point.samples for point in watch.machine.state.points] == []
    watch.grow(8192 * MIB, range(1, 12), 900)
    assert [point.samples for point in watch.machine.state.points] == [10_000 * k for k in range(1, 12)]


def test_a_completed_job_that_goes_on_is_watched_again_and_a_failed_one_is_not() -> None:
    for completed, spoken in ((True, True), (False, False)):
        watch = Watch(row_bytes=14_400.0)
        watch.machine.handle(example_of(JobCompleted) if completed else example_of(JobFailed), watch.now)
        assert bool(watch.grow(900 * MIB, range(1, 11))) is spoken


def test_a_killed_server_gets_more_than_it_was_killed_with() -> None:
    """It came back with the same limit, or a smaller one, and was killed at the same sample again, for ever."""
    watch = Watch(row_bytes=1440.0)
    watch.grow(1000 * MIB, range(1, 10), 3000)
    (killed,) = watch.machine.handle(server_exited("ps-1", oom_killed=True), watch.now)
    assert isinstance(killed, Emit)
    assert (killed.fact.action, killed.fact.recommended_ps_memory_bytes) == ("grow", 1500 * MIB)
    watch.machine.handle(limit_decided(1536 * MIB), watch.now)
    (again,) = watch.machine.handle(server_exited("ps-2", oom_killed=True), watch.now)  # before it was ever measured
    assert isinstance(again, Emit)
    assert again.fact.recommended_ps_memory_bytes == 2304 * MIB
    told = watch.grow(1000 * MIB, range(5, 9), 3000)  # back at a checkpoint, where all is well
    assert {forecast.action for forecast in told[-1:]} <= {"grow"}
    assert watch.machine.state.killed_bytes == 2304 * MIB
    watch.grow(1500 * MIB, range(9, 40), 3000, 700 * MIB)
    assert watch.machine.state.killed_bytes == 0
    assert watch.machine.handle(server_exited("ps-1"), watch.now) == []


def test_a_snapshot_continues_and_a_closed_watch_is_silent() -> None:
    watch = Watch(row_bytes=1440.0)
    watch.grow(2048 * MIB, range(1, 9))
    adapter = TypeAdapter(WatchState)
    document = adapter.dump_json(watch.machine.state)
    assert len(document) < 20_000
    other = OomMachine(adapter.validate_json(document), watch.machine.settings)
    event = measured((server_measured("ps-0", 620 * MIB, 640 * MIB, 19_000, 32, 1440.0),))
    assert other.handle(event, 1100.0) == watch.machine.handle(event, 1100.0)
    resized = PodResized(job="job", pod="ps-0", cpu_cores=1.0, memory_bytes=700 * MIB)
    other.handle(resized, 1101.0)
    other.handle(replace(resized, pod="worker-0", memory_bytes=MIB), 1101.0)
    assert other.state.servers["ps-0"].limit_bytes == 700 * MIB
    other.handle(server_exited("ps-0"), 1102.0)
    assert not other.state.servers
    other.handle(example_of(JobFailed), 1103.0)
    assert other.handle(event, 1104.0) == []


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(WatchError, match=r"shrink_gain is 1\.5; give a fraction"):
        WatchSettings(shrink_gain=1.5)

"""Servers that keep rows on their disks: what is foretold of their memory, and what may be done for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oom_builders import measured, progressed, server_measured
from pydantic import TypeAdapter
from stretto_core.machine import Emit
from stretto_core.model.spilling import COLD_ROW_BYTES, in_words_of, worth
from stretto_core.model.types import JobLimits, JobProfile, Prices, SpillPolicy
from stretto_core.oom.machine import OomMachine
from stretto_core.oom.remedies import read_ratio, remedies
from stretto_core.oom.state import JobOpened, WatchSettings
from stretto_core.oom.usage import ServerUsage, UsagePoint, rounded_bytes
from stretto_messages.base import GIB
from stretto_messages.oom import OomForecast
from stretto_messages.values import Plan, Remedy, StepTimes

MIB = 2**20
ROW = 1500.0
BASE = 80 * MIB
LIMIT = 512 * MIB
SENT = TypeAdapter(Remedy)
CURVE = tuple(0.4 * (1 - k / 16) ** 2 for k in range(1, 17))
PLAN = Plan(4, 2, 4.0, 2.0, 2 * GIB, LIMIT)
DEAR = Prices(0.04, 0.5)
ALWAYS = WatchSettings(repeat_s=0.0)
LIMITS = JobLimits(Plan(1, 1, 1.0, 1.0, GIB, 64 * MIB), Plan(64, 8, 8.0, 8.0, 4 * GIB, 16 * GIB))


class Job:
    """A job of two servers whose rows grow by a constant rate. What does not fit into memory is on their disks."""

    def __init__(self, spill: SpillPolicy, prices: Prices = DEAR, **more: object) -> None:
        profile = JobProfile(512, 10**6, LIMITS, prices, spill=spill)
        self.machine = OomMachine()
        self.machine.handle(JobOpened(10**6, 64 * MIB, 16 * GIB, profile), 1000.0)
        self.more = more
        self.read_factor = 1.0

    def told(self, seconds: int, rows_per_s: int = 3000, step_s: float = 0.02) -> OomForecast:
        """Return the last forecast after these seconds, of 1,000 samples each."""
        return self.all_told(seconds, rows_per_s, step_s)[-1]

    def all_told(self, seconds: int, rows_per_s: int = 3000, step_s: float = 0.02) -> list[OomForecast]:
        """Return all forecasts of these seconds."""
        said = list[OomForecast]()
        for second in range(5, seconds + 1, 5):
            now = 1000.0 + second
            rows = rows_per_s * second
            hot = min(rows, int((0.9 * LIMIT - BASE - rows * COLD_ROW_BYTES) / (ROW - COLD_ROW_BYTES)))
            tables = int(hot * ROW + (rows - hot) * COLD_ROW_BYTES)
            server = server_measured("ps-0", BASE + tables, LIMIT, rows, 32, ROW, tables)
            steps = 5 * 4 / step_s
            share = 16 * hot / rows
            reads = 0.0 if hot == rows else self.read_factor * 0.4 * (1 - share / 16) ** 2 * 1000 * steps
            disk = {"disk_free_bytes": 100 * GIB, "disk_reads_per_s": 1e5, "rows_pulled": int(1000 * steps)} | self.more
            server = replace(server, cold_rows=rows - hot, rows_read=int(reads), cpu_limit_cores=8.0, **disk)
            times = StepTimes(emb_s=0.001, grad_s=0.01, upd_s=0.001, sync_s=0.001)
            window = replace(
                measured([server, replace(server, pod="ps-1")]),
                plan=PLAN, batch_size=512, window_s=5.0, step_time_s=step_s, times=times, throughput=512 * 4 / step_s,
                miss_ratios=CURVE,
            )  # fmt: skip
            self.machine.handle(progressed(1000 * second, 10**6, 1000.0), now)
            said += [action.fact for action in self.machine.handle(window, now) if isinstance(action, Emit)]
        return said


def remedy(found: OomForecast, kind: str) -> Remedy:
    return next(way for way in found.remedies if way.kind == kind)


def test_a_server_that_will_not_fit_is_told_three_ways_with_cost_and_speed() -> None:
    """4.5 MB of rows a second: 300,000 rows fill the limit after 100 s; a million seconds' rows never fit."""
    found = Job("auto").told(80)
    assert found.action == "grow"
    assert [way.kind for way in found.remedies] == ["grow", "move", "spill"]
    grow, move, spill = found.remedies
    assert grow.ps_memory_bytes == found.recommended_ps_memory_bytes > LIMIT == move.ps_memory_bytes
    assert move.ps > 2 == spill.ps
    assert move.cost_per_hour > grow.cost_per_hour > spill.cost_per_hour
    assert spill.cost_per_hour == JobProfile(512, 1, LIMITS, DEAR).cost_per_hour(PLAN)
    assert 0.2 < spill.hot_share < 0.9
    assert spill.reads_per_step == pytest.approx(0.96 * 1000 * 0.4 * (1 - spill.hot_share) ** 2, rel=0.1)
    assert spill.slowdown_interval.low <= spill.slowdown <= spill.slowdown_interval.high


def test_what_steps_differ_from_window_to_window_is_told_and_costs_nothing() -> None:
    job = Job("auto")
    calm = remedy(job.told(80), "spill")
    job.told(80, step_s=0.03)
    rough = remedy(job.told(80, step_s=0.02), "spill")
    assert 0 < calm.noise < 0.1 < rough.noise
    assert (rough.slowdown_interval, worth(rough)) == (calm.slowdown_interval, worth(calm))
    assert not remedy(job.told(80), "grow").noise


def test_under_auto_a_server_that_evicts_asks_for_no_memory_for_cold_rows() -> None:
    found = Job("auto").told(200)
    assert found.action == "none"
    assert "keeps rows on its disk, as more memory costs more" in found.reason
    assert remedy(found, "spill").reads_per_step > 0
    assert all(server.oom_in_s is None and server.at_end_bytes <= LIMIT for server in found.ps)


def test_reads_beyond_the_curve_correct_the_forecast_of_memory_and_what_spilling_is_worth() -> None:
    """The servers read three times what their curve tells: so will they as the model grows on."""
    job, more = Job("auto"), Job("auto")
    job.machine.settings = more.machine.settings = ALWAYS
    more.read_factor = 3.0
    told, way = remedy(job.told(200), "spill"), remedy(more.told(200), "spill")
    assert way.reads_measured == pytest.approx(3 * told.reads_measured, rel=0.1)
    curve = 1000 * 0.4 * (1 - way.hot_share) ** 2
    assert way.reads_per_step == pytest.approx(3 * curve, rel=0.1)
    assert way.reads_interval.low < way.reads_per_step < way.reads_interval.high
    assert way.slowdown > told.slowdown
    assert f"{way.reads_per_step:.0f} reads a step" in in_words_of(way)
    assert f"{way.reads_measured:.0f} now" in in_words_of(way)


@pytest.mark.parametrize("memory_gib_hour", [0.3, 0.57, 2.0, 3.4])
@pytest.mark.parametrize("rows_per_s", [1000, 3000])
def test_auto_decides_once_while_the_first_rows_go(memory_gib_hour: float, rows_per_s: int) -> None:
    """Few reads, or a window in which the first rows went, say little of the curve, and widen no interval."""
    job, ways = Job("auto", Prices(0.04, memory_gib_hour)), list[Remedy]()
    job.machine.settings = ALWAYS
    for found in job.all_told(180 if rows_per_s == 3000 else 450, rows_per_s):
        if found.remedies and found.ps[0].used_bytes > 0.85 * LIMIT:
            ways.append(min(found.remedies, key=worth))
            spill = remedy(found, "spill")
            assert spill.reads_interval.high < 1.3 * spill.reads_per_step
            assert spill.slowdown_interval.high < 0.2
    changes = sum(way.kind != before.kind for before, way in pairwise(ways))
    assert len(ways) > 10
    assert changes <= 1


class RoundingJob:
    """A server of 512 MiB whose rows, of 1,500 bytes or 750 rounded, grow by 3,000 a second. It has no disk."""

    def __init__(self) -> None:
        self.machine = OomMachine()
        profile = JobProfile(512, 10**6, LIMITS, spill="never")
        self.machine.handle(JobOpened(10**6, 64 * MIB, 16 * GIB, profile), 1000.0)

    def told(self, seconds: int) -> OomForecast:
        """Return the last forecast after these seconds, of 1,000 samples each."""
        return [found for second in range(5, seconds + 1, 5) for found in self.window(second)][-1]

    def window(self, second: int, fault: str = "") -> list[OomForecast]:
        """Return the forecast of the window that ends at ``second``, if there is one."""
        rows = 3000 * second
        saved = (ROW - COLD_ROW_BYTES) / 2
        warm = min(rows, max(0, int((BASE + rows * ROW - 0.9 * LIMIT) / saved)))
        tables = int(rows * ROW - warm * saved)
        server = server_measured("ps-0", BASE + tables, LIMIT, rows, 32, ROW, tables)
        server = replace(server, warm_rows=warm, warm_bytes=int(warm * saved))
        window = replace(measured([server]), plan=PLAN, spill_fault=fault)
        self.machine.handle(progressed(1000 * second, 10**6, 1000.0), 1000.0 + second)
        return [a.fact for a in self.machine.handle(window, 1000.0 + second) if isinstance(a, Emit)]


def test_rounding_makes_room_so_that_memory_lasts_until_every_row_is_rounded() -> None:
    """All rows as they were trained fill the limit after 100 s, all rounded ones after 197 s."""
    before = RoundingJob().told(80).ps[0]
    assert before.oom_in_s == pytest.approx(20, abs=8)
    found = RoundingJob().told(140)
    (server,) = found.ps
    assert server.oom_in_s == pytest.approx(57, rel=0.2)
    assert server.at_end_bytes > 2 * LIMIT, "all of them as they were trained"
    assert found.action == "grow"


def test_a_fault_that_begins_or_ends_is_told_at_once() -> None:
    job, fault = RoundingJob(), "ps-0: 400 MB are left: give the server more memory"
    quiet = job.told(60)
    job.machine.settings = replace(job.machine.settings, repeat_s=1e6, change=1e6)
    began, on, ended = (job.window(65, fault), job.window(70, fault), job.window(75))
    assert [each.reason.endswith(f"; rows find no room: {fault}") for each in began] == [True]
    assert on == []
    assert ["rows find no room" in each.reason for each in (quiet, *ended)] == [False, False]


def test_a_server_that_rounds_rows_and_has_room_for_them_says_how_many_it_rounded() -> None:
    job = RoundingJob()
    job.told(105)
    server = server_measured("ps-0", int(0.9 * LIMIT), LIMIT, 315_000, 32, ROW, int(0.9 * LIMIT) - BASE)
    saved = BASE + 315_000 * ROW - 0.9 * LIMIT
    server = replace(server, warm_rows=100_000, warm_bytes=int(100_000 * (ROW - COLD_ROW_BYTES) - saved))
    job.machine.settings = ALWAYS
    for second in range(110, 400, 5):  # no further row comes
        job.machine.handle(progressed(1000 * second, 10**6, 1000.0), 1000.0 + second)
        actions = job.machine.handle(replace(measured([server]), plan=PLAN), 1000.0 + second)
    found = [a.fact for a in actions if isinstance(a, Emit)][-1]
    assert found.ps[0].oom_in_s is None
    assert found.action == "grow"
    assert "ps-0 has 100,000 of 315,000 rows rounded to bfloat16: its limit of 0.50 GiB is too small" in found.reason


def test_rows_of_no_bytes_are_rounded_to_no_fewer() -> None:
    """Stored profiles may have such rows, whatever the profiler refuses now."""
    usage = ServerUsage()
    usage.add(UsagePoint(10, 2**20, 2**19, 0.0, warm_rows=5, warm_bytes=100), 2**30, 32)
    assert rounded_bytes(usage, 2.0**20) == 2**20


def test_servers_that_have_memory_again_say_nothing_of_the_curve() -> None:
    """Rows that nobody uses stay on the disk, and are not read: that is no sign of a curve that tells too much."""
    server = server_measured("ps-0", BASE, LIMIT, 10**5, 32, ROW, 10**7)
    server = replace(server, cold_rows=5 * 10**4, rows_pulled=10**6, rows_read=10)
    window = replace(
        measured([server]), plan=PLAN, window_s=5.0, step_time_s=0.02, throughput=50_000.0, miss_ratios=CURVE
    )
    assert read_ratio(window, {"ps-0"}) is None
    tight = replace(window, ps=(replace(server, memory_used_bytes=int(0.9 * LIMIT)),))
    assert (read_ratio(tight, {"ps-0"}) or 1) < 0.1
    assert read_ratio(tight, set()) is None, "its first rows went in this window"
    assert read_ratio(replace(tight, miss_ratios=()), {"ps-0"}) is None


def test_in_an_emergency_it_goes_on_asking() -> None:
    found = Job("emergency").told(200)
    assert found.action == "grow"
    assert "rows on its disk: its limit of 0.50 GiB is too small" in found.reason
    assert found.recommended_ps_memory_bytes > 2 * LIMIT
    assert remedy(found, "spill")
    assert all(server.oom_in_s is None for server in found.ps), "nobody dies of memory while the disk has room"


def test_under_auto_it_asks_again_once_reading_costs_more_than_memory() -> None:
    """A disk of 2,000 reads a second: four workers of 50 steps a second need some hundred times as many."""
    found = Job("auto", disk_reads_per_s=2000.0).told(200)
    assert found.action == "grow"
    assert remedy(found, "spill").slowdown > 1


@pytest.mark.parametrize("spill", ["auto", "emergency"])
def test_rows_that_stay_on_the_disk_beside_enough_memory_need_no_remedy(spill: SpillPolicy) -> None:
    """After memory was given, those that nobody uses are not read back."""
    job = Job(spill, memory_limit_bytes=16 * GIB)
    found = job.told(200)
    assert found.action != "grow"
    assert found.remedies == ()


@pytest.mark.parametrize(
    ("spill", "more"),
    [("never", {}), ("auto", {"disk_free_bytes": MIB}), ("auto", {"disk_reads_per_s": 0.0})],
)
def test_no_remedy_where_policy_or_disk_does_not_allow_it(spill: SpillPolicy, more: dict[str, object]) -> None:
    found = Job(spill, **more).told(80)
    assert found.action == "grow"
    assert "spill" not in {way.kind for way in found.remedies}


def test_entries_of_cold_rows_need_memory_at_last() -> None:
    """The entries of 13 million rows take 0.3 GB of memory, and 13 million more rows come: no disk helps."""
    found = Job("auto").told(130, rows_per_s=100_000)
    assert found.action == "grow"
    assert "spill" not in {way.kind for way in found.remedies}


@given(
    st.integers(0, 10**15), st.integers(0, 10**15), st.floats(0, 1e12), st.floats(1e-9, 1e9), st.floats(0, 1e12),
    st.floats(24, 2**32),
)  # fmt: skip
def test_whatever_servers_report_the_forecast_can_be_sent(
    pulled: int, read: int, reads_per_s: float, step_s: float, throughput: float, row_bytes: float
) -> None:
    server = replace(
        server_measured("ps-0", 10**9, 2**30, 10**6, 32, row_bytes, 9 * 10**8),
        cold_rows=10**5, rows_pulled=pulled, rows_read=read, disk_reads_per_s=reads_per_s, disk_free_bytes=2**52,
    )  # fmt: skip
    window = replace(
        measured([server]), plan=PLAN, window_s=5.0, step_time_s=step_s, throughput=throughput, miss_ratios=CURVE
    )
    usage = ServerUsage()
    usage.add(UsagePoint(10**6, 10**9, 9 * 10**8, row_bytes, 10**5), 2**30, 32)
    profile = JobProfile(512, 10**6, LIMITS, spill="auto")
    for way in remedies(usage, 8 * 10**9, window, "ps-0", profile):
        assert SENT.validate_python(way) == way

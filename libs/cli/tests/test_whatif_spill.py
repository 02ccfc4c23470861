"""`stretto whatif spill`: a curve of miss ratios, played."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from asking import assert_refused, changed, command
from stretto_cli import options
from stretto_client import Event
from stretto_messages.base import example_of
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.scenario import MISS_RATIOS, PLAN
from stretto_wire.codec import adapter_of

whatif, document_of = command("whatif spill -")
CURVE: dict[str, Any] = {
    "miss_ratios": [0.4, 0.2, 0.1, 0.0],
    "rows": 2**30,
    "row_bytes": 152.7,
    "rows_per_step": 1000.0,
    "step_s": 0.02,
    "compute_s": 0.0,
    "reads_per_s": 40_000.0,
    "other_cost_per_hour": 0.64,
}


def test_each_share_in_memory_has_its_reads_speed_memory_and_cost() -> None:
    """A row is 128 bytes hot and 24.7 in any case; 0.88 of 0.98 of a limit are filled."""
    found = document_of(CURVE)
    quarter, _, _, whole = found["options"]
    assert quarter["memory_gib"] == pytest.approx((24.7 + 32) / 0.88 / 0.98)
    assert whole["memory_gib"] == pytest.approx(152.7 / 0.88 / 0.98)
    assert (whole["reads_per_step"], whole["disk_gib"], whole["steps_per_s"]) == (0, 0, 50)
    assert quarter["reads_per_step"] == pytest.approx(0.96 * 400)
    assert quarter["steps_per_s"] == pytest.approx(1 / (0.02 + 384 / 40_000))
    low, high = quarter["steps_per_s_interval"]
    assert [low, high] == pytest.approx([1 / (0.02 + 1.2 * 384 / 40_000), 1 / (0.02 + 384 / 1.2 / 40_000)])
    assert quarter["cost_per_hour"] == pytest.approx(0.64 + 0.005 * quarter["memory_gib"])


def test_the_cheapest_weighs_speed_against_memory() -> None:
    assert document_of({**CURVE, "reads_per_s": 30_000.0})["cheapest"]["hot_share"] == 0.5
    assert document_of({**CURVE, "memory_gib_hour": 0.0})["cheapest"]["hot_share"] == 1
    assert document_of({**CURVE, "compute_s": 0.02})["cheapest"]["hot_share"] == 0.25, "its reads hide"


def test_what_the_limit_holds_is_an_option_and_nothing_beyond_is_taken() -> None:
    found = document_of({**CURVE, "limit_gib": 100.0, "memory_gib_hour": 0.0})
    held = found["cheapest"]
    assert held["memory_gib"] == pytest.approx(100)
    assert held["hot_share"] == pytest.approx((0.88 * 98 - 24.7) / 128)
    assert 0.1 < held["reads_per_step"] / 1000 < 0.3
    assert len(found["options"]) == 5


@pytest.mark.parametrize(
    ("tight", "named"),
    [
        (
            {"limit_gib": 20.0},
            "limit_gib = 20, but 25.0% of the rows in memory, with the entries of the others, take 65.",
        ),
        ({"disk_gib": 1.0, "limit_gib": 100.0}, "disk_gib = 1, but rows that find no room in memory take 1"),
    ],
)
def test_what_does_not_fit_is_an_answer_with_a_remedy_and_no_rows(tight: dict[str, float], named: str) -> None:
    found = document_of({**CURVE, **tight})
    assert found == {"feasible": False, "reason": found["reason"]}
    assert found["reason"].startswith(named)
    assert "raise it" in found["reason"]
    shown = whatif({**CURVE, **tight})
    assert (shown.exit_code, "reads/step" in shown.stdout) == (0, False)
    assert shown.stdout.startswith(f"not feasible: {named[:20]}")


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The profiles of job ctr at the gateway that commands ask, to be changed."""
    told: list[dict[str, Any]] = [adapter_of(ProfileMeasured).dump_python(example_of(ProfileMeasured), mode="json")]

    class Gateway:
        def job(self, name: str) -> dict[str, Any]:
            prices = {"memory_gib_hour": 0.01, "disk_gib_hour": 0.001}
            return {"name": name, "spec": {"prices": prices}, "cost_per_hour": 0.5}

        def events(self, job: str, after: int, follow: bool, names: tuple[str, ...]) -> Iterator[Event]:
            assert (job, after, follow, names) == ("ctr", 0, False, ("profile-measured",))
            return (Event(number, names[0], {"data": each}) for number, each in enumerate(told))

    monkeypatch.setattr(options, "connect", lambda *_: contextlib.nullcontext(Gateway()))
    return told


def test_a_job_gives_the_figures_that_the_file_leaves_out(profiles: list[dict[str, Any]]) -> None:
    """The page has more rows. The server of 602,004 rows was pulled 482,000 rows in 350.6 steps."""
    given = {
        "miss_ratios": list(MISS_RATIOS), "rows": 40_000_000, "row_bytes": 152.6,
        "other_bytes": 162_529_280 - 97_517_568, "rows_per_step": 482_000 / (35_900 / 512 * 5),
        "step_s": 0.0285, "compute_s": profiles[0]["times"]["grad_s"],
        "server_cpu_s": 0.71 * 5 / (35_900 / 512 * 5), "server_cores": 1.0, "reads_per_s": 41_000.0,
        "workers": PLAN.workers, "servers": PLAN.ps, "memory_gib_hour": 0.01, "disk_gib_hour": 0.001, "limit_gib": 8,
        "other_cost_per_hour": 0.5 - PLAN.ps * PLAN.ps_memory_bytes / 2**30 * 0.01,
    }  # fmt: skip
    profiles.append({**profiles[0], "miss_ratios": []})
    of_job = document_of({"limit_gib": 8, "rows": 40_000_000}, "--job", "ctr")
    assert of_job["feasible"]
    assert of_job == document_of(given)


def test_a_job_that_has_not_measured_what_reads_cost_is_refused(profiles: list[dict[str, Any]]) -> None:
    profiles[0]["ps"][0]["disk_reads_per_s"] = 0.0
    assert_refused(whatif({}, "--job", "ctr"), "reads_per_s is missing")
    del profiles[0]["ps"][0]["disk_reads_per_s"], profiles[0]["ps"][0]["rows_pulled"]
    refused = whatif({}, "--job", "ctr")
    assert_refused(refused, "rows_per_step is missing")
    profiles.append({**profiles[0], "miss_ratios": []})
    del profiles[0]["miss_ratios"]  # as of an earlier Stretto
    refused = whatif({}, "--job", "ctr")
    assert refused.exit_code == 2
    assert "its servers have measured no miss ratios; submit it with resources.ps.spill" in refused.stderr


def test_workers_share_the_disk() -> None:
    found = document_of({**CURVE, "workers": 16, "compute_s": 0.02})
    assert found["options"][0]["steps_per_s"] == pytest.approx(40_000 / 384)


def test_people_get_a_table() -> None:
    result = whatif(CURVE)
    assert result.exit_code == 0
    assert "→" in result.stdout
    assert "75.0%" in result.stdout


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("miss_ratios", [0.1, 0.2], "never rise"),
        ("miss_ratios", [], "miss_ratios = []"),
        ("miss_ratios", [1.5], "miss_ratios[0] = 1.5"),
        ("rows", 0, "rows = 0"),
        ("row_bytes", 10.0, "row_bytes = 10.0"),
        ("reads_per_s", 0.0, "reads_per_s = 0.0"),
        ("step_s", -1.0, "step_s = -1.0"),
        ("workers", 1.5, "workers = 1.5"),
        ("limit_gib", 0, "limit_gib = 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(field: str, value: object, said: str) -> None:
    assert_refused(whatif(changed(CURVE, field, value), "-o", "json"), said)

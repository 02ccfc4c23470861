"""`stretto whatif spill`: a curve of miss ratios, played."""

from __future__ import annotations

from typing import Any

import pytest
from asking import assert_refused, changed, command

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


@pytest.mark.parametrize("tight", [{"limit_gib": 20.0}, {"disk_gib": 0.0, "limit_gib": 100.0}])
def test_what_does_not_fit_is_an_answer(tight: dict[str, float]) -> None:
    found = document_of({**CURVE, **tight})
    assert found["feasible"] is False
    assert "raise limit_gib or disk_gib" in found["reason"]


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

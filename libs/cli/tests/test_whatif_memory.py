"""`stretto whatif memory`: a forecast from a CSV file of one parameter server."""

from __future__ import annotations

from typing import Any

import pytest
from asking import assert_refused, command

HEADER = "time_s,samples_trained,categories,memory_gib\n"


def true_gib(samples: float) -> float:
    return 0.5 + 4.0 * (samples / 3e6) ** 0.7


def series(rows: int = 40, last: float = 1e6) -> str:
    samples = [last * (i + 1) / rows for i in range(rows)]
    return HEADER + "".join(
        f"{100 + n / 1000:.3f},{n:.0f},{(true_gib(n) - 0.5) * 1e7:.0f},{true_gib(n):.6f}\n" for n in samples
    )


whatif, document_of = command("whatif memory -")


def answer(text: str, capacity_gib: float, remaining: float) -> dict[str, Any]:
    return document_of(text, "--capacity-gib", str(capacity_gib), "--samples-remaining", str(remaining))


def test_the_end_is_foreseen_from_the_first_third() -> None:
    found = answer(series(), 16, 2e6)
    assert set(found) == {
        "forecast_gib_at_end",
        "interval_gib",
        "oom_at_s",
        "oom_at_samples",
        "oom_is_likely",
        "recommended_gib",
    }
    assert found["forecast_gib_at_end"] == pytest.approx(4.5, rel=0.05)
    low, high = found["interval_gib"]
    assert low <= 4.5 <= high
    assert found["oom_at_s"] is None
    assert found["oom_at_samples"] is None
    assert 0.97 * 4.5 <= found["recommended_gib"] <= 1.15 * 4.5


def test_running_out_is_told_on_the_clock_of_the_series() -> None:
    found = answer(series(), 3.5, 2e6)
    true_samples = 3e6 * (3.0 / 4.0) ** (1 / 0.7)
    assert found["oom_at_samples"] == pytest.approx(true_samples, rel=0.05)
    assert found["oom_at_s"] == pytest.approx(100 + found["oom_at_samples"] / 1000, rel=1e-3)


def test_what_is_over_already_is_not_told_of_the_future() -> None:
    found = answer(series(), 1.0, 2e6)
    assert true_gib(found["oom_at_samples"]) >= 1.0
    assert found["oom_at_samples"] <= 1e6
    assert found["oom_at_s"] <= 100 + 1000


def test_without_growth_memory_stays_and_the_end_of_the_job_is_now() -> None:
    flat = HEADER + "".join(f"{i},{i * 1000},5000,2.0\n" for i in range(1, 20))
    found = answer(flat, 2.5, 1e6)
    assert found["forecast_gib_at_end"] == pytest.approx(2.0, rel=0.03)
    assert found["oom_at_s"] is None
    assert answer(series(), 16, 0)["forecast_gib_at_end"] == pytest.approx(true_gib(1e6), rel=0.02)


def test_people_get_a_sentence() -> None:
    result = whatif(series(), "--capacity-gib", "3.5", "--samples-remaining", "2000000")
    assert result.exit_code == 0
    assert "3.5 GiB are full at" in " ".join(result.stdout.split())


FINE = ("--capacity-gib", "4", "--samples-remaining", "10")
WRONG = [
    (HEADER, FINE, "samples_trained"),
    (series(2), FINE, "samples_trained has 2 different values"),
    (HEADER + "1,1,1,1\n2,2,2\n", FINE, "line 3"),
    (HEADER + "1,1,1,nan\n", FINE, "memory_gib = nan"),
    (HEADER + "1,1,-1,1\n", FINE, "categories = -1"),
    (HEADER + "3,1,1,1\n2,2,2,1\n4,3,3,1\n", FINE, "time_s is 2.0"),
    ("time_s,samples_trained,categories\n1,1,1\n", FINE, "a column memory_gib"),
    (series(), ("--capacity-gib", "0", "--samples-remaining", "10"), "--capacity-gib = 0"),
    (series(), ("--capacity-gib", "4", "--samples-remaining", "nan"), "--samples-remaining = nan"),
    (series(), ("--capacity-gib", "1e300", "--samples-remaining", "10"), "--capacity-gib = 1e+300"),
    (series(), ("--capacity-gib", "4", "--samples-remaining", "1e300"), "--samples-remaining = 1e+300"),
    (HEADER + "1,1,1,1e300\n", FINE, "memory_gib = 1e+300"),
    (series(), (*FINE, "--algorithm", "oracle"), "oracle"),
]


@pytest.mark.parametrize(("text", "options", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_what_is_wrong_is_said_in_one_line(text: str, options: tuple[str, ...], said: str) -> None:
    assert_refused(whatif(text, *options, "-o", "json"), said)

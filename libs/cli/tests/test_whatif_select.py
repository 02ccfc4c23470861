"""`stretto whatif select`: candidates by one name and another, and what is wrong in a file."""

from __future__ import annotations

from typing import Any

import pytest
from asking import assert_refused, changed, command

CANDIDATES: dict[str, Any] = {
    "capacity": {"cpu": 12, "gpu": 1},
    "objective": "gain",
    "rho": 2.5,
    "epsilon": 1e-6,
    "jobs": [
        {
            "id": "j1",
            "remaining_samples": 1e6,
            "candidates": [
                {"id": "c1", "resources": {"cpu": 8}, "cost": 3.2, "gain": 120.0, "throughput": 900.0},
                {"id": "c2", "resources": {"cpu": 4, "gpu": 1}, "cost": 9.0, "gain": 100.0, "throughput": 800.0},
            ],
        },
        {
            "id": "j2",
            "remaining_samples": 1e5,
            "candidates": [
                {"id": "c1", "resources": {"cpu": 8}, "cost": 3.2, "gain": 90.0, "throughput": 900.0},
                {"id": "c2", "resources": {}, "cost": 1.0, "gain": -3.0, "throughput": 100.0},
            ],
        },
        {"id": "j3", "remaining_samples": 0, "candidates": []},
    ],
}


whatif, answer = command("whatif select -")


@pytest.mark.parametrize("name", ["exact", "exact-or-hull", "hull", "weighted-greedy"])
def test_a_choice_is_told_with_its_gap(name: str) -> None:
    found = answer(CANDIDATES, "--algorithm", name)
    assert set(found) == {"chosen", "value", "bound", "gap", "solve_s"}
    assert list(found["chosen"]) == ["j1", "j2", "j3"]
    assert found["value"] <= found["bound"]
    assert found["gap"] == pytest.approx((found["bound"] - found["value"]) / found["bound"])


def test_the_best_is_found_for_either_objective() -> None:
    found = answer(CANDIDATES)
    assert found["chosen"] == {"j1": "c2", "j2": "c1", "j3": None}
    assert found["value"] == 190.0
    assert found["gap"] < 1e-8
    efficient = answer(changed(CANDIDATES, "objective", "efficiency"))
    value = 100 / 9 * (1e6 / 800 + 1e-6) ** -2.5 + 90 / 3.2 * (1e5 / 900 + 1e-6) ** -2.5
    assert efficient["value"] == pytest.approx(value)
    assert answer(changed(CANDIDATES, "jobs", []))["gap"] == 0


def test_jobs_can_be_made_to_end_as_early_as_possible() -> None:
    found = answer(changed(CANDIDATES, "objective", "completion"))
    earlier = (1e6 / (800 - 100) - 1e6 / 800) + (1e5 / (900 - 90) - 1e5 / 900)  # from the throughput less the gain
    assert (found["chosen"], found["value"]) == ({"j1": "c2", "j2": "c1", "j3": None}, pytest.approx(earlier))
    document = changed(CANDIDATES, "objective", "completion")
    document["jobs"][0]["throughput"] = 400.0
    found = answer(document)  # the larger gain of the one counts for more than both smaller ones
    assert (found["chosen"], found["value"]) == (
        {"j1": "c1", "j2": None, "j3": None},
        pytest.approx(1e6 / 400 - 1e6 / 520),
    )


def test_nothing_that_helps_fits() -> None:
    found = answer(changed(CANDIDATES, "capacity", {"cpu": 3, "gpu": 0}))
    assert found["chosen"] == {"j1": None, "j2": None, "j3": None}
    assert (found["value"], found["bound"], found["gap"]) == (0, 0, 0)


def test_people_get_a_table() -> None:
    result = whatif(CANDIDATES)
    assert result.exit_code == 0
    assert "j1" in result.stdout
    assert "below the best" in result.stdout


WRONG = [
    (changed(CANDIDATES, "jobs.0.candidates.0.cost", 0), "jobs[0].candidates[0].cost = 0"),
    (changed(CANDIDATES, "jobs.0.candidates.0.throughput", -1), "jobs[0].candidates[0].throughput = -1"),
    (changed(CANDIDATES, "jobs.1.candidates.0.resources", {"cpu": -8}), "jobs[1].candidates[0].resources.cpu = -8"),
    (changed(CANDIDATES, "jobs.1.candidates.0.resources", {"tpu": 8}), "jobs[1].candidates[0].resources = tpu"),
    (changed(CANDIDATES, "jobs.0.candidates.0.id", "c2"), "jobs[0].candidates.id = c2: expected every id once"),
    (changed(CANDIDATES, "jobs.1.id", "j1"), "jobs.id = j1"),
    (changed(CANDIDATES, "objective", "speed"), "objective = speed"),
    (changed(CANDIDATES, "jobs.0.remaining_samples", -1.0), "jobs[0].remaining_samples = -1.0"),
    (changed(CANDIDATES, "capacity", {"cpu": float("nan")}), "capacity.cpu = NaN: expected a finite number"),
    (changed(CANDIDATES, "jobs.0.candidates.0.gain", float("inf")), "jobs[0].candidates[0].gain = Infinity"),
    (changed(CANDIDATES, "rho", -1), "rho = -1: expected at least 0"),
    (changed(CANDIDATES, "capacity", {"cpu": -1}), "capacity.cpu = -1"),
    (changed(CANDIDATES, "jobs.0.throughput", -1.0), "jobs[0].throughput = -1.0"),
]


@pytest.mark.parametrize(("document", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_said_in_one_line(document: Any, said: str) -> None:
    assert_refused(whatif(document, "-o", "json"), said)

"""Trials of data workers, by steps that are timed alone and with them."""

from __future__ import annotations

import pytest
from stretto_programs.lanes.trial import LIMIT_S, LONGEST, SKIPPED, STEPS, Trial


def run(trial: Trial, steps: int, alone_s: float, with_s: float, served_from: int = 0, trusted_from: int = 0) -> float:
    """Run steps of these lengths; return how many were over when the trial was."""
    now_s = 1.0
    for number in range(steps):
        trial.next_step(now_s, is_served=number >= served_from, is_trusted=number >= trusted_from)
        if trial.phase in ("kept", "home"):
            return number
        now_s += with_s if trial.is_split else alone_s
    return steps


@pytest.mark.parametrize(
    ("alone_s", "with_s", "phase"),
    [(0.010, 0.008, "kept"), (0.010, 0.0101, "kept"), (0.010, 0.0103, "home"), (0.010, 0.030, "home")],
)
def test_the_slower_way_is_left(alone_s: float, with_s: float, phase: str) -> None:
    trial = Trial()
    run(trial, 1000, alone_s, with_s, served_from=200, trusted_from=230)
    assert trial.phase == phase
    assert (trial.alone_s, trial.with_s) == (pytest.approx(alone_s), pytest.approx(with_s))
    assert trial.in_words() == f"a step took {1e3 * alone_s:.2f} ms alone, {1e3 * with_s:.2f} ms with them"


def test_nothing_is_tried_while_no_data_worker_serves_and_steps_before_the_first_answer_do_not_count() -> None:
    trial = Trial()
    assert run(trial, 5000, 0.01, 0.01, served_from=10**6) == 5000
    assert (trial.phase, trial.is_split, trial.in_words()) == ("waiting", False, "")
    late = Trial()
    over = run(late, 5000, 0.01, 0.005, trusted_from=900)
    assert over == pytest.approx(900 + SKIPPED + STEPS, abs=3)
    never = Trial()
    assert run(never, 100_000, 0.01, 0.01, trusted_from=10**6) < 2 * LIMIT_S / 0.01


def test_long_steps_are_timed_for_no_longer_than_the_limit() -> None:
    trial = Trial()
    over = run(trial, 1000, 6.0, 5.0)
    assert trial.phase == "kept"
    assert over <= 2 * (SKIPPED + LIMIT_S / 5.0 + LONGEST) + 2

"""The steps that a program prints are counted, however its lines come."""

from __future__ import annotations

import pytest
from stretto.program.output import PrintedSteps
from stretto.worker.step_timer import StepTimer


def told(*chunks: bytes, pattern: str = r"step (\d+)") -> StepTimer:
    meter = StepTimer()
    steps = PrintedSteps(pattern, meter)
    for second, chunk in enumerate(chunks):
        steps.feed(chunk, float(second))
    return meter


@pytest.mark.parametrize(
    "chunks",
    [
        (b"step 1\n", b"step 3\nloss 5\n", b"step 7\n"),
        (b"step 1\r", b"st", b"ep 7\r"),  # a progress bar, and a line in parts
        (b"step 5\n", b"step 9\n", b"step 2\n"),  # another epoch begins
        (b"step 1\n", b"step 99999999999999999999\n", b"step 7\n"),  # no number of steps
        (b"step 1 of step x\n", b"no step\n", b"step 7 step 7\n"),
    ],
)
def test_steps_are_the_differences_of_what_lines_tell(chunks: tuple[bytes, ...]) -> None:
    assert told(*chunks).steps_total == 6


def test_the_first_line_only_begins_and_its_time_counts_for_the_next() -> None:
    window = told(b"step 100\n", b"", b"step 104\n").window()
    assert (window.steps, window.step_s, window.longest_gap_s) == (4, 0.5, 2.0)
    assert window.samples_total == window.steps_total == 4, "one sample a step, as the profiler expects"


def test_a_line_without_an_end_is_bounded() -> None:
    assert told(b"step 1\n", b"x" * 10_000, b"step 3\n", b"step 4\n").steps_total == 3

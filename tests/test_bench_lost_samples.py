"""How `lost_samples` counts: by what workers wrote, and by what survives in the parameters."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.programs.loaders import environments
from tests.bench.programs.loaders.counting import (
    Count,
    counted,
    first_line,
    line,
    longest_gap_s,
    read,
    samples_in,
    samples_per_s,
    surviving,
)
from tests.bench.programs.loaders.ours import Stretto, is_pod
from tests.bench.programs.loaders.schedule import SAMPLES, events
from tests.bench.programs.lost_samples import Result, measured

FIRST = first_line(None) + line(1, 10.0, [0, 1]) + line(2, 11.0, [2, 3]) + line(3, 12.0, [4, 5])
OTHER = first_line(None) + line(1, 10.5, [6, 7])
SECOND = first_line((1, 2)) + line(1, 16.0, [4, 6]) + line(2, 17.0, [8])
LAST = first_line((2, 1)) + line(1, 20.0, [9])


def test_all_that_any_worker_wrote_counts_as_trained() -> None:
    groups = read([(1, FIRST), (1, OTHER), (2, SECOND)])
    batches = [each for group in groups.values() for each in group.batches]
    assert counted(batches, 10) == Count(lost=1, repeated=2), "9 is nowhere, 4 and 6 are trained twice"
    assert longest_gap_s(batches) == 4.0
    assert samples_per_s(batches, 14) == 2.0, "from the first to the last batch"


def test_what_was_trained_after_a_checkpoint_survives_no_return_to_it() -> None:
    groups = read([(1, FIRST), (1, OTHER), (2, SECOND), (3, LAST)])
    kept = sorted(sample for each in surviving(groups) for sample in each.samples)
    assert kept == [0, 1, 2, 3, 4, 6, 6, 7, 9]
    assert counted(surviving(groups), 10) == Count(lost=2, repeated=1), "5 and 8 are gone, 6 is there twice"


def test_a_group_that_begins_from_the_start_forgets_everything() -> None:
    groups = read([(1, FIRST), (2, first_line(None) + line(1, 20.0, [0]))])
    assert counted(surviving(groups), 6) == Count(lost=5, repeated=0)


def test_a_line_that_a_killed_worker_left_unfinished_is_not_trained() -> None:
    torn = FIRST + line(4, 13.0, [6, 7])[:-1]
    assert read([(1, torn)]) == read([(1, FIRST)])
    assert samples_in(FIRST) == 6
    assert samples_in(b"") == samples_in(first_line(None)) == 0


def test_the_schedule_is_of_the_seed_and_each_event_in_its_own_part() -> None:
    for seed in range(100):
        told = events(seed)
        assert told == events(seed)
        assert [(each.does, each.workers) for each in told if each.does == "resize"] == [("resize", 3), ("resize", 2)]
        moments = [each.at_samples for each in told]
        assert moments == sorted(moments)
        assert moments[0] >= SAMPLES * 0.1
        assert moments[-1] < SAMPLES * 0.9


@pytest.mark.parametrize(
    "error", [EOFError("it ended"), TimeoutError("it was not over"), environments.Missing("no pip")]
)
def test_a_row_that_cannot_be_had_is_skipped_for_a_peer_and_a_miss_for_stretto(error: Exception) -> None:
    def results() -> list[Result]:
        raise error

    assert measured("a peer", "", results)["ok"] is None
    ours = measured("ours", "", results, most=0)
    assert (ours["ok"], ours["bar"], ours["note"]) == (False, "0 lost, <= 0 repeated", f"failed: {error}")


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that was started as the pod of worker-1, whose number the file of worker-0 has, too."""
    for name in ("worker-0", "worker-1"):
        (tmp_path / name / "work").mkdir(parents=True)
    process = subprocess.Popen(["sleep", "600"], env={"STRETTO_POD_FOLDER": str(tmp_path / "worker-1" / "work")})
    yield process
    process.kill()
    process.wait()


def test_a_process_that_has_the_number_of_an_ended_pod_is_not_that_pod(
    tmp_path: Path, pod: subprocess.Popen[bytes]
) -> None:
    assert is_pod(pod.pid, tmp_path / "worker-1")
    assert not is_pod(pod.pid, tmp_path / "worker-0")
    assert not is_pod(os.getpid(), tmp_path / "worker-1")


def test_a_kill_waits_for_a_worker_that_runs_unless_the_job_is_over(
    tmp_path: Path, pod: subprocess.Popen[bytes]
) -> None:
    class Waiting(Stretto):
        def __init__(self, turns: list[bool]) -> None:
            self.pods, self.turns = tmp_path, turns

        def turn(self) -> bool:
            if len(self.turns) == 1:
                (tmp_path / "worker-1" / "pid").write_text(str(pod.pid))
            return self.turns.pop()

    (tmp_path / "worker-0" / "pid").write_text(str(pod.pid))
    Waiting([False]).kill(0.5, 0.0)
    (tmp_path / "worker-1" / "pid").unlink()
    assert pod.poll() is None
    Waiting([True, True]).kill(0.5, 0.0)
    assert pod.wait(60) == -9

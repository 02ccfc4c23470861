"""`python -m stretto_pipeline.run` with data workers of several types: those of the first feed those of the second.

Programs and data workers are real processes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from test_run import FIT, MADE, Program, running, steps_of, until

pytestmark = pytest.mark.slow
OPTIONS = ("--data-workers", "cpu=2,gpu=1", "--device-type", "StringToHashBucketFast=gpu")
WAITS = """
class Waits(Meets):
    def on_train_batch_end(self, step, logs):
        time.sleep(0.05)
        super().on_train_batch_end(step, logs)
"""
CHAINED = WAITS + FIT.replace("callbacks=[Meets(20, 70)]", "callbacks=[Waits(20, 70, 100, 130)]")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Exit status and output of the plain program."""
    with running(tmp_path_factory.mktemp("fit") / "alone", CHAINED, plain=True) as program:
        status, out, errors = program.ended()
    assert status == 3, errors
    return status, out


class Chain:
    """The data workers of a program, by type."""

    def __init__(self, folder: Path, program: Program) -> None:
        self._folder, self._program = folder, program

    def serving(self, device: str) -> dict[str, psutil.Process]:
        """Data workers that serve, by the names of their starts."""
        lanes = [
            each
            for each in psutil.Process(self._program.pid).children()
            if each.status() != psutil.STATUS_ZOMBIE and "stretto_pipeline.execution.lane" in each.cmdline()
        ]
        found: dict[str, psutil.Process] = {}
        for each in lanes:
            logs = [Path(file.path).name for file in each.open_files()]
            names = [name.removesuffix(".log") for name in logs if name.startswith(f"{device}-data-worker")]
            found |= {name: each for name in names if self._has_socket(name)}
        return found

    def _has_socket(self, name: str) -> bool:
        return any(each.is_socket() for each in self._folder.glob(f"stretto-run-*/{name}"))


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_lanes_of_either_type_may_be_killed_and_nothing_changes(tmp_path: Path, alone: tuple[int, str]) -> None:
    with running(tmp_path / "run", CHAINED, *OPTIONS, meet=True) as program:
        chain = Chain(tmp_path / "run", program)

        def wait(count: int, device: str, without: Callable[[str], bool] = lambda name: False) -> None:
            until(lambda: len([each for each in chain.serving(device) if not without(each)]) == count)

        program.meet(20)
        wait(2, "cpu")
        wait(1, "gpu")
        before_s = {name: cpu_s(each) for name, each in chain.serving("cpu").items()}
        program.go_on(20)
        program.meet(70)
        after_s = {name: cpu_s(each) for name, each in chain.serving("cpu").items()}
        worked = [name for name, since_s in before_s.items() if after_s[name] > since_s]
        [*_, victim] = chain.serving("cpu").items()
        victim[1].send_signal(signal.SIGKILL)
        program.go_on(70)
        program.meet(100)
        [(gone, gpu)] = chain.serving("gpu").items()
        gpu.send_signal(signal.SIGKILL)
        wait(1, "gpu", without=lambda name: name == gone)
        wait(2, "cpu", without=lambda name: name == victim[0])
        program.go_on(100)
        program.meet(130)
        for each in (*chain.serving("cpu").values(), *chain.serving("gpu").values()):
            each.send_signal(signal.SIGKILL)
        program.go_on(130)
        status, out, errors = program.ended()
    assert (status, out) == alone, errors
    assert len(worked) == 2, "both data workers of the first type prepare"
    elsewhere, steps = steps_of(errors)
    assert steps == 4 * 47
    assert elsewhere > steps // 4
    assert "2 cpu and 1 gpu data workers prepare Map, " in errors
    lost = "data worker 0 is lost: it ended with status -9; what it had in hand is for"
    assert f"cpu {lost} gpu data workers to prepare" in errors
    assert f"gpu {lost} home to prepare" in errors
    assert "differs" not in errors
    assert "other values" not in errors


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (MADE + "fit('it', raw().map(parsed).batch(32))", ["--data-workers", "cpu=1,gpu=1"],
         "Keras fit: nothing moves to data workers: no operation that moves is for the gpu data workers: name one, "
         "such as --device-type StringToHashBucketFast=gpu, or give --data-workers a number alone"),
        ("print('no TensorFlow')", ["--data-workers", "cpu=1,gpu"], "'gpu' is refused: give a number, or types with"),
        ("print('no TensorFlow')", ["--data-workers", "2", "--device-type", "A=gpu"], "--data-workers 2 has no gpu"),
    ],
)  # fmt: skip
def test_types_that_cannot_be_used_are_told_with_the_remedy(
    tmp_path: Path, text: str, options: list[str], reason: str
) -> None:
    with running(tmp_path / "run", text, *options) as program:
        _, _, errors = program.ended()
    assert reason in errors

"""A worker with the user's program, as processes: who dies with whom, and what becomes of the samples."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from stretto.pod.process import EXIT_PLATFORM
from stretto.program import child, output
from stretto.worker.step_timer import StepTimer
from stretto_messages.pods import WorkerReported
from stretto_wire import JobSpec
from stretto_wire.program import ProgramSpec
from trainer_harness import Cluster, wait_for

TRAIN = """\
import os, sys, time, stretto.agent
for batch in stretto.agent.samples():
    print("trains", os.getpid(), batch.start, batch.stop, flush=True)
    while os.path.exists({hold!r}):
        time.sleep(0.02)
print("saved", flush=True)
"""


def job(folder: Path, script: str, **more: Any) -> JobSpec:
    (folder / "train.py").write_text(script)
    program = {"command": ["python", "train.py"], "path": str(folder), **more.pop("program", {})}
    return JobSpec.parse({"name": "mine", "program": program, **more})


@pytest.fixture
def begun(started: Callable[..., Cluster], tmp_path: Path) -> Callable[..., Cluster]:
    def begin(script: str, **more: Any) -> Cluster:
        return started(job(tmp_path, script, **more), cold=True)

    return begin


def launched(cluster: Cluster, pod: str) -> Any:
    return cluster.launch(pod, **cluster.own_folder(pod))


def trained(cluster: Cluster, pod: str) -> list[tuple[int, int]]:
    lines = (line.split() for line in cluster.log(pod).splitlines() if line.startswith("trains "))
    return [(int(first), int(stop)) for _, _, first, stop in lines]


DATASET = {"samples": 64, "batch_size": 4, "batches_per_shard": 4, "shuffle": False}


def test_a_killed_worker_takes_its_program_along_and_another_one_goes_on(
    begun: Callable[..., Cluster], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    cluster = begun(TRAIN.format(hold=str(hold)), dataset=DATASET)
    launched(cluster, "worker-0")
    wait_for(lambda: trained(cluster, "worker-0"))
    program = int(cluster.log("worker-0").partition("trains ")[2].split()[0])
    cluster.kill("worker-0")
    wait_for(lambda: not _lives(program), what="the program to die with the process that runs it")
    hold.unlink()
    assert launched(cluster, "worker-1").wait(60) == 0, cluster.log("worker-1")
    assert trained(cluster, "worker-1") == [(first, first + 4) for first in range(0, 64, 4)]
    assert "saved" in cluster.log("worker-1"), "what follows the loop is run"
    assert sorted(cluster.done) == [0, 1, 2, 3]


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_worker_that_is_asked_to_leave_gives_back_what_its_program_has_not_passed(
    begun: Callable[..., Cluster], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    cluster = begun(TRAIN.format(hold=str(hold)), dataset=DATASET)
    launched(cluster, "worker-0")
    wait_for(lambda: trained(cluster, "worker-0"))
    cluster.processes["worker-0"].send_signal(signal.SIGTERM)
    wait_for(lambda: "asked to leave" in cluster.log("worker-0"))
    hold.unlink()
    assert cluster.processes["worker-0"].wait(60) == 0
    assert [one.offset for one in cluster.released] == [4]
    assert "saved" not in cluster.log("worker-0")


IGNORES = """
import signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: None)
print("up", flush=True)
while True:
    time.sleep(1)
"""


def child_of(folder: Path, script: str, meter: StepTimer, **more: str) -> child.Child:
    spec = ProgramSpec(command=(sys.executable, "-c", script), path=str(folder), level=0, **more)
    workers = SimpleNamespace(extended={})
    settings = SimpleNamespace(
        pod_folder=folder, threads=1, spec=SimpleNamespace(resources=SimpleNamespace(workers=workers))
    )
    pod = SimpleNamespace(settings=settings, leaving=threading.Event())
    return child.Child(pod, spec, meter)  # type: ignore[arg-type]


def test_a_program_that_does_not_end_is_killed_with_all_that_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ranks of one program wait for the end of each other's; a handler of SIGTERM does not run in a collective."""
    monkeypatch.setattr(child, "KILL_S", 0.1)
    made = child_of(tmp_path, IGNORES, StepTimer())
    program = made.start({})
    wait_for(lambda: psutil.Process(program.pid).children())
    left = psutil.Process(program.pid).children()
    assert made.wait(program, lambda: 0.1) == -signal.SIGKILL
    wait_for(lambda: not any(_lives(each.pid) for each in left))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("raise SystemExit(7)", "the program ended with status 7"),
        ("pass", "the program ended with status 0 before its samples did"),
    ],
)
def test_a_program_that_fails_or_stops_early_is_the_users_error(
    begun: Callable[..., Cluster], script: str, told: str
) -> None:
    cluster = begun(script, dataset=DATASET)
    assert launched(cluster, "worker-0").wait(60) == 3
    assert told in cluster.log("worker-0").splitlines()[-1]


def test_a_program_that_a_signal_ends_never_counts_against_its_shard(begun: Callable[..., Cluster]) -> None:
    script = "import os, stretto.agent\nfor batch in stretto.agent.samples():\n    os.kill(os.getpid(), 9)\n"
    cluster = begun(script, dataset=DATASET)
    assert launched(cluster, "worker-0").wait(60) == 137
    assert not cluster.failed


def test_a_command_that_is_not_there_is_named(begun: Callable[..., Cluster]) -> None:
    cluster = begun("", dataset=DATASET, program={"command": ["no-such-command"]})
    assert launched(cluster, "worker-0").wait(60) == 3
    assert "program.command[0] = no-such-command: there is no such command" in cluster.log("worker-0")


def test_a_program_that_is_only_watched_is_one_lease(begun: Callable[..., Cluster], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    hundred = "import os, time\nx = bytearray(100 * 2**20)\n"
    cluster = begun(f"{hundred}while os.path.exists({str(hold)!r}):\n    time.sleep(0.02)\n")
    launched(cluster, "worker-0")
    wait_for(lambda: any(held > 100 * 2**20 for held in _memory(cluster)), what="a report of the program's own memory")
    hold.unlink()
    assert cluster.processes["worker-0"].wait(60) == 0, cluster.log("worker-0")
    assert sorted(cluster.done) == [0]


def _memory(cluster: Cluster) -> list[int]:
    return [report.memory_used_bytes for report in cluster.reports if isinstance(report, WorkerReported)]


def test_a_watched_program_is_logged_and_its_steps_are_reported(begun: Callable[..., Cluster], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    script = f"""\
import os, sys, time
for step in range(1, 8):
    print("step", step, file=sys.stderr)
    time.sleep(0.05)
while os.path.exists({str(hold)!r}):
    time.sleep(0.02)
print("last words")
"""
    cluster = begun(script, program={"progress": "step (\\d+)"})
    launched(cluster, "worker-0")
    wait_for(lambda: [each for each in cluster.worker_reports() if each.steps_total == 6])
    hold.unlink()
    wait_for(lambda: "last words" in cluster.log("worker-0"))
    assert "step 7" in cluster.log("worker-0")


WRITES = """
import pathlib, time
pathlib.Path("logs").mkdir()
with open("logs/events.out.tfevents.1", "ab", buffering=0) as file:
    for step in range(128, 2**14):
        event = bytes([16, step & 127 | 128, step >> 7])
        file.write(len(event).to_bytes(8, "little") + bytes(4) + event + bytes(4))
        time.sleep(0.01)
"""


def test_the_steps_of_event_files_are_counted_while_the_program_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(output, "LOOK_S", 0.02)
    made = child_of(tmp_path, WRITES, meter := StepTimer(), event_files="logs")
    program = made.start({})
    wait_for(lambda: meter.steps_total > 0)
    assert made.wait(program, lambda: 0.0) == -signal.SIGTERM


PREPARES = """\
import os, time, stretto.agent
from pathlib import Path

POD = os.environ["STRETTO_POD"]


class Slow:
    def __len__(self):
        return 64

    def __getitem__(self, number):
        time.sleep(0.02)
        if POD != "worker-0":
            Path({done!r}, str(number)).touch()
        return number * number, POD


items = stretto.agent.prepared(Slow())
for step, batch in enumerate(stretto.agent.samples()):
    for number, (square, pod) in zip(batch, items.__getitems__(batch), strict=True):
        print("trains", number, square, pod, flush=True)
    while step == 0 and len(os.listdir({done!r})) < 4:  # the data worker computes the batch that follows
        time.sleep(0.02)
"""


FITS = """
import os, time
from pathlib import Path
import keras, numpy as np, tensorflow as tf
import stretto.agent

POD = os.environ["STRETTO_POD"]


class Items:
    def __len__(self):
        return 64

    def __getitem__(self, number):
        time.sleep(0.02)
        if POD != "worker-0":
            Path({done!r}, str(number)).touch()
        return np.full(3, number, np.float32), np.float32([number % 2])


items = stretto.agent.prepared(Items())
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")


def batches():
    for batch in stretto.agent.samples():
        print("asks", batch.start, flush=True)
        x, y = map(np.stack, zip(*items.__getitems__(batch)))
        assert (x[:, 0] == [*batch]).all()
        while batch.start == 0 and not os.listdir({done!r}):  # the data worker computes the batch that follows
            time.sleep(0.02)
        yield x, y


signature = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
trained = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print("trained", 4 * step, flush=True))
data = tf.data.Dataset.from_generator(batches, output_signature=signature)
options = tf.data.Options()
options.experimental_optimization.inject_prefetch = False
model.fit(data.with_options(options), verbose=0, callbacks=[trained])
"""


def test_fit_trains_what_data_workers_compute_and_asks_for_nothing_ahead(
    begun: Callable[..., Cluster], tmp_path: Path
) -> None:
    (done := tmp_path / "done").mkdir()
    data = {"mode": "always", "count": 1, "cpu_cores": 1}
    cluster = begun(FITS.format(done=str(done)), dataset=DATASET, resources={"data": data})
    cluster.launch("data-0", **cluster.own_folder("data-0"))
    cluster.announce_data_workers("data-0")
    assert launched(cluster, "worker-0").wait(120) == 0, cluster.log("worker-0")
    lines = [line for line in cluster.log("worker-0").splitlines() if line.startswith(("asks ", "trained "))]
    assert lines == [f"{word} {first}" for first in range(0, 64, 4) for word in ("asks", "trained")]


def test_a_data_worker_computes_items_of_a_program_which_trains_the_same_numbers(
    begun: Callable[..., Cluster], tmp_path: Path
) -> None:
    (done := tmp_path / "done").mkdir()
    script, data = PREPARES.format(done=str(done)), {"mode": "always", "count": 1, "cpu_cores": 2}
    cluster = begun(script, dataset=DATASET, resources={"data": data})
    cluster.launch("data-0", STRETTO_CPU_CORES="2", **cluster.own_folder("data-0"))
    cluster.announce_data_workers("data-0")
    assert launched(cluster, "worker-0").wait(60) == 0, cluster.log("worker-0")
    lines = [line.split()[1:] for line in cluster.log("worker-0").splitlines() if line.startswith("trains ")]
    assert [(int(number), int(square)) for number, square, _ in lines] == [(each, each * each) for each in range(64)]
    assert "data-0" in {pod for _, _, pod in lines[4:8]}
    assert cluster.terminate("data-0") == 0, cluster.log("data-0")


def test_a_data_worker_whose_program_is_killed_says_why_it_ends(begun: Callable[..., Cluster], tmp_path: Path) -> None:
    script = "import stretto.agent\nstretto.agent.prepared([1, 2])\n"
    cluster = begun(script, dataset=DATASET, resources={"data": {"mode": "always", "count": 1}})
    process = cluster.launch("data-0", **cluster.own_folder("data-0"))
    cluster.ready("data-0")
    (program,) = psutil.Process(process.pid).children()
    program.kill()
    assert process.wait(60) == EXIT_PLATFORM
    *_, last = cluster.log("data-0").splitlines()
    assert "the program that computed items was ended by SIGKILL" in last

"""Lanes, which are processes of their own: whatever becomes of them, the parameters are those of training alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stretto.batches.feed import Feed
from stretto.batches.preparation import BatchesPrepared, fingerprint_of
from stretto.build import make_program, options_of
from stretto.data_worker.lane_pool import LanePool, _environment
from stretto.engine.link import Access
from stretto.model.entry_point import load
from stretto.model.program import Program
from stretto.model.reading import Feature, RowsReading
from stretto.trial.local import Here
from stretto_plane import Key
from stretto_wire.jobspec.spec import JobSpec
from trainer_harness import spec_of, wait_for

BATCH, BATCHES = 256, 96
SMALL = {"seed": 5, "categories": 2000, "hidden": "16"}
"""The arguments of the model in `spec_of`."""
READING = RowsReading({"rows": 26}, {"numeric": Feature((None, 13))}, has_own_loss=False)
"""How batches of this model are read."""
HOSTILE = Path(__file__).parents[1] / "helpers" / "hostile_peers.py"


@pytest.fixture(scope="module")
def spec() -> JobSpec:
    return spec_of(BATCH * BATCHES)


@pytest.fixture(scope="module")
def access() -> Access:
    return Access(Key.random())


@pytest.fixture(scope="module")
def lanes(spec: JobSpec, access: Access, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanePool]:
    folder = tmp_path_factory.mktemp("lanes")
    started = LanePool(spec, 2, lambda number: f"unix:{folder}/lane-{number}.sock", access, READING)
    wait_for(lambda: len(started.addresses) == 2)
    yield started
    started.close()


def trained(
    spec: JobSpec,
    prepare: Callable[[Feed, Program], None],
    midway: Callable[[Feed], None],
    afterwards: Callable[[Feed], None] = lambda _: None,
) -> int:
    """Train without a pipeline, in two halves; return the checksum of all parameters."""
    program = make_program(load(spec.model), options_of(spec))
    feed = Feed(program)
    with Here(program, BATCH, pipeline=False, feed=feed) as here:
        prepare(feed, program)
        here.train(0, BATCH * BATCHES // 2)
        midway(feed)
        here.train(BATCH * BATCHES // 2, BATCH * BATCHES // 2)
        afterwards(feed)
        return here.server.store.checksum()


def test_work_never_becomes_less_when_a_lane_that_ended_is_counted_first() -> None:
    lanes = [BatchesPrepared(1, 0.1), BatchesPrepared(1, 0.1), BatchesPrepared(1, 0.4)]
    before = sum(lanes, BatchesPrepared())
    after = sum(lanes[:2], BatchesPrepared() + lanes[2])
    assert after.busy_s < before.busy_s, "the case that this is about"
    assert after.since(before) == BatchesPrepared()


def test_other_threads_find_their_variables_while_some_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESENT", "1")
    done, missed = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            missed.extend([] if "PRESENT" in os.environ else [True])

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(1000):
        with _environment({"ADDED": "2", "PRESENT": "2"}):
            assert (os.environ["ADDED"], os.environ["PRESENT"]) == ("2", "2")
        assert ("ADDED" in os.environ, os.environ["PRESENT"]) == (False, "1")
    done.set()
    looking.join()
    assert not missed


def nothing(*_: Any) -> None:
    pass


@pytest.fixture(scope="module")
def alone(spec: JobSpec) -> int:
    return trained(spec, nothing, nothing)


def joined(lanes: LanePool, access: Access, spec: JobSpec) -> Callable[[Feed, Program], None]:
    def join(feed: Feed, program: Program) -> None:
        feed.use(lanes.addresses, access, fingerprint_of(spec.model_dump(mode="json"), program.task))

    return join


def test_lanes_change_no_bit_of_the_parameters(spec: JobSpec, access: Access, lanes: LanePool, alone: int) -> None:
    found: list[Feed] = []
    assert trained(spec, joined(lanes, access, spec), found.append) == alone
    counts = found[0].counts
    assert counts.delivered == BATCHES
    assert counts.from_lanes >= counts.checked > 0
    assert not found[0].differing
    wait_for(lambda: lanes.work.batches >= counts.answers)
    assert lanes.work.busy_s > 0
    assert found[0].reading == READING
    loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in lanes.pids.values()]
    assert not any("tensorflow" in each for each in loaded), (
        "the module of the model imports Keras, and no lane uses it"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lane_that_dies_or_stops_costs_time_only(
    spec: JobSpec, access: Access, lanes: LanePool, alone: int, number: int
) -> None:
    wait_for(lambda: len(lanes.addresses) == 2)
    victim = lanes.pids[0]

    def midway(feed: Feed) -> None:
        os.kill(victim, number)

    try:
        assert trained(spec, joined(lanes, access, spec), midway) == alone
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(lanes.addresses) == 2 and lanes.pids[0] != victim)


def test_a_lane_that_leaves_answers_what_it_was_asked(access: Access, alone: int, tmp_path: Path) -> None:
    """Goal: a data worker that goes costs no batch that another would have to prepare again.

    Method: a slow store, so that each lane always has two batches in hand; one of two pods ends while they are trained.
    """
    slow = spec_of(BATCH * BATCHES, model={"arguments": {**SMALL, "samples_per_s": BATCH / 0.1}})
    stays, leaves = (
        LanePool(slow, 1, lambda _, name=name: f"unix:{tmp_path}/{name}.sock", access, READING)
        for name in ("stays", "leaves")
    )
    feeds: list[tuple[Feed, Program]] = []
    left_at: list[int] = []

    def join(feed: Feed, program: Program) -> None:
        wait_for(lambda: stays.addresses and leaves.addresses)
        feed.use(
            (*stays.addresses, *leaves.addresses), access, fingerprint_of(slow.model_dump(mode="json"), program.task)
        )
        feeds.append((feed, program))

    def leave() -> None:
        feed, program = feeds[0]
        wait_for(lambda: feed.counts.delivered > BATCHES * 5 / 8)
        left_at.append(feed.counts.delivered)
        feed.use(stays.addresses, access, fingerprint_of(slow.model_dump(mode="json"), program.task))
        leaves.close()

    leaving = threading.Thread(target=leave)

    def all_answered(feed: Feed) -> None:
        leaving.join()
        assert left_at[0] < BATCHES - 20, "it left while batches were trained"
        assert leaves.work.batches > 2
        # one that is late, on a busy machine, is not waited for; the last one may still be on its way
        wait_for(lambda: 0 <= stays.work.batches + leaves.work.batches - feed.counts.answers <= feed.counts.late)

    try:
        assert trained(slow, join, lambda _: leaving.start(), all_answered) == alone
    finally:
        stays.close()
        leaves.close()


def test_a_lane_with_other_code_is_not_used(
    spec: JobSpec, access: Access, lanes: LanePool, alone: int, caplog: pytest.LogCaptureFixture
) -> None:
    def join(feed: Feed, program: Program) -> None:
        feed.use(
            lanes.addresses, access, {**fingerprint_of(spec.model_dump(mode="json"), program.task), "numpy": "1.0"}
        )
        wait_for(lambda: "numpy: 1.0 here" in caplog.text)

    found: list[Feed] = []
    assert trained(spec, join, found.append) == alone
    assert found[0].counts.answers == 0


def test_a_lane_whose_data_differ_is_found_and_named(
    spec: JobSpec, access: Access, alone: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = spec_of(BATCH * BATCHES, model={"arguments": {**SMALL, "seed": 6}})
    wrong = LanePool(other, 1, lambda number: f"unix:{tmp_path}/lane-{number}.sock", access, READING)
    try:
        wait_for(lambda: wrong.addresses)

        def join(feed: Feed, program: Program) -> None:
            feed.use(wrong.addresses, access, fingerprint_of(other.model_dump(mode="json"), program.task))

        found: list[Feed] = []
        assert trained(spec, join, found.append) == alone
        assert found[0].differing
        assert found[0].counts.from_lanes == 0
        assert "is not used, nor any other lane" in caplog.text
    finally:
        wrong.close()


def test_hostile_peers_are_refused_and_change_nothing(
    spec: JobSpec, access: Access, lanes: LanePool, alone: int
) -> None:
    """Goal: no peer without the key, and no damaged frame, is accepted; lanes, trainer and numbers stay as they were.

    Method: another process attacks two lanes while they feed a trainer, and is itself a third lane of it.
    """
    wait_for(lambda: len(lanes.addresses) == 2)
    before = lanes.pids
    attacker = subprocess.Popen(
        [sys.executable, HOSTILE, *lanes.addresses], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert attacker.stdin is not None
    print(json.dumps(access.key.pem.decode()), file=attacker.stdin, flush=True)
    wrong = json.loads(attacker.stdout.readline())

    def begin(feed: Feed, program: Program) -> None:
        print(json.dumps({"frames": 600, "per_s": 10_000, "seed": 1}), file=attacker.stdin, flush=True)
        feed.use((*lanes.addresses, wrong), access, fingerprint_of(spec.model_dump(mode="json"), program.task))

    found: list[Feed] = []
    assert trained(spec, begin, found.append) == alone
    told = json.loads(attacker.stdout.readline())
    attacker.communicate()
    assert told["honest"]
    assert told["accepted"] == 0
    assert all(count >= 30 for count in told["tried"].values())
    assert told["nonsense"] > 1, "the trainer has asked the wrong lane for batches"
    assert not found[0].differing
    assert trained(spec, joined(lanes, access, spec), found.append) == alone
    assert found[1].counts.from_lanes > 0
    assert lanes.pids == before


POD = """
import sys, time
from stretto.engine.link import Access
from stretto.data_worker.lane_pool import LanePool
from stretto_plane import Key
from stretto_wire.jobspec.spec import JobSpec

spec = JobSpec.model_validate_json(sys.argv[1])
lanes = LanePool(spec, 1, lambda number: f"unix:{sys.argv[2]}/lane-{number}.sock", Access(Key.random()), None)
while not lanes.addresses:
    time.sleep(0.01)
print(lanes.pids[0], flush=True)
time.sleep(300)
"""


def test_a_lane_ends_with_its_pod(spec: JobSpec, tmp_path: Path) -> None:
    """The pod is killed without a chance to say so."""
    pod = subprocess.Popen(
        [sys.executable, "-c", POD, spec.model_dump_json(), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    lane = int(pod.stdout.readline())
    pod.kill()
    pod.wait()
    wait_for(lambda: not Path(f"/proc/{lane}").exists() or "(zombie)" in Path(f"/proc/{lane}/status").read_text())


FORKING = """
import os, time
from pathlib import Path
from stretto.examples.wide_deep import WideDeep

class Forking(WideDeep):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        if not os.fork():
            while not Path(__file__).with_name("stop").exists():
                time.sleep(0.05)
            os._exit(0)
"""
KILL_A_LANE = """
import os
os.kill(lanes.pids[0], 9)
begun, first = time.monotonic(), lanes.pids[0]
while lanes.pids[0] == first and time.monotonic() < begun + 60:
    time.sleep(0.01)
print(lanes.pids[0], flush=True)
os._exit(0)
"""


def test_a_lane_is_started_again_although_a_process_that_it_forked_lives_on(tmp_path: Path) -> None:
    """Goal: a process that holds the pipe of a dead lane does not hide its end."""
    (tmp_path / "forking.py").write_text(FORKING)
    spec = spec_of(BATCH, model={"entry": "forking:Forking", "embedding_dim": 16})
    script = POD.replace("time.sleep(300)", KILL_A_LANE)
    pod = subprocess.Popen(
        [sys.executable, "-c", script, spec.model_dump_json(), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    try:
        first, second = int(pod.stdout.readline()), int(pod.stdout.readline())
        assert second != first
    finally:
        (tmp_path / "stop").touch()
        pod.kill()
        pod.wait()

"""Lanes, which are processes of their own: whatever becomes of them, the parameters are those of training alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stretto.engine.link import Access
from stretto.entry import load
from stretto.feed import Feeder
from stretto.lanes import Lanes
from stretto.local import Here
from stretto.model import Program
from stretto.preparation import fingerprint_of
from stretto.program import make_program, options_of
from stretto_plane import Key
from stretto_wire.spec import JobSpec
from trainer_harness import spec_of

BATCH, BATCHES = 256, 96


@pytest.fixture(scope="module")
def spec() -> JobSpec:
    return spec_of(BATCH * BATCHES)


@pytest.fixture(scope="module")
def access() -> Access:
    return Access(Key.random())


@pytest.fixture(scope="module")
def lanes(spec: JobSpec, access: Access, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    folder = tmp_path_factory.mktemp("lanes")
    started = Lanes(spec, 2, lambda number: f"unix:{folder}/lane-{number}.sock", access)
    until(lambda: len(started.addresses) == 2)
    yield started
    started.close()


def until(condition: Callable[[], Any], timeout_s: float = 90) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def trained(spec: JobSpec, prepare: Callable[[Feeder, Program], None], midway: Callable[[Feeder], None]) -> int:
    """Train without a pipeline, in two halves; return the checksum of all parameters."""
    program = make_program(load(spec.model), options_of(spec))
    feeder = Feeder(program)
    with Here(program, BATCH, pipeline=False, feed=feeder) as here:
        prepare(feeder, program)
        here.train(0, BATCH * BATCHES // 2)
        midway(feeder)
        here.train(BATCH * BATCHES // 2, BATCH * BATCHES // 2)
        return here.server.control.checksum()


def nothing(*_: Any) -> None:
    pass


@pytest.fixture(scope="module")
def alone(spec: JobSpec) -> int:
    return trained(spec, nothing, nothing)


def joined(lanes: Lanes, access: Access, spec: JobSpec) -> Callable[[Feeder, Program], None]:
    def join(feeder: Feeder, program: Program) -> None:
        feeder.use(lanes.addresses, access, fingerprint_of(spec, program.task))

    return join


def test_lanes_change_no_bit_of_the_parameters(spec: JobSpec, access: Access, lanes: Lanes, alone: int) -> None:
    found: list[Feeder] = []
    assert trained(spec, joined(lanes, access, spec), found.append) == alone
    counts = found[0].counts
    assert counts.delivered == BATCHES
    assert counts.from_lanes > BATCHES / 4
    assert counts.checked >= 2
    assert not found[0].differing


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lane_that_dies_or_stops_costs_time_only(
    spec: JobSpec, access: Access, lanes: Lanes, alone: int, number: int
) -> None:
    until(lambda: len(lanes.addresses) == 2)
    victim = lanes.pids[0]

    def midway(feeder: Feeder) -> None:
        os.kill(victim, number)

    try:
        assert trained(spec, joined(lanes, access, spec), midway) == alone
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    until(lambda: len(lanes.addresses) == 2 and lanes.pids[0] != victim)


def test_a_lane_with_other_code_is_not_used(
    spec: JobSpec, access: Access, lanes: Lanes, alone: int, caplog: pytest.LogCaptureFixture
) -> None:
    def join(feeder: Feeder, program: Program) -> None:
        feeder.use(lanes.addresses, access, {**fingerprint_of(spec, program.task), "numpy": "1.0"})
        until(lambda: "numpy: 1.0 here" in caplog.text)

    used: list[tuple[str, ...]] = []
    assert trained(spec, join, lambda feeder: used.append(feeder.used)) == alone
    assert used == [()]


def test_a_lane_whose_data_differ_is_found_and_named(
    spec: JobSpec, access: Access, alone: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = spec_of(BATCH * BATCHES, model={"arguments": {"seed": 6, "categories": 2000, "hidden": "16"}})
    wrong = Lanes(other, 1, lambda number: f"unix:{tmp_path}/lane-{number}.sock", access)
    try:
        until(lambda: wrong.addresses)

        def join(feeder: Feeder, program: Program) -> None:
            feeder.use(wrong.addresses, access, fingerprint_of(other, program.task))

        found: list[Feeder] = []
        assert trained(spec, join, found.append) == alone
        assert found[0].differing
        assert found[0].counts.from_lanes == 0
        assert "is not used, nor any other lane" in caplog.text
    finally:
        wrong.close()


POD = """
import sys, time
from stretto.engine.link import Access
from stretto.lanes import Lanes
from stretto_plane import Key
from stretto_wire.spec import JobSpec

spec = JobSpec.model_validate_json(sys.argv[1])
lanes = Lanes(spec, 1, lambda number: f"unix:{sys.argv[2]}/lane-{number}.sock", Access(Key.random()))
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
    assert pod.stdout is not None
    lane = int(pod.stdout.readline())
    pod.kill()
    pod.wait()
    until(lambda: not Path(f"/proc/{lane}").exists() or "(zombie)" in Path(f"/proc/{lane}/status").read_text(), 10)

"""Telemetry that is malformed or cannot be true is set aside with field and remedy; the rest is profiled as before.

A real server and a real profiler; reports are generated.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stretto_wire as wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stretto_messages.actuator import PlanApplied, PodExited, PodStarted
from stretto_messages.base import example_of
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.scenario import PLAN
from stretto_profiler.service import Profiler
from stretto_profiler.settings import ProfilerSettings
from stretto_wire.contract.submission import SPEC

from tests.contract.driven_service import DrivenService, is_of_the_wire

JOB = SPEC.name
NUMBERS = itertools.count()
REPORTS = {"worker": example_of(WorkerReported), "ps": example_of(PsReported)}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**18),
    st.floats(),
    st.sampled_from(["", "worker-0", "ps-7", "x" * 500, "\u202e\n"]),
    st.sampled_from([float("nan"), float("inf"), -0.0, 1e300, 10**15, 2**53, [], {}]),
)
CHANGES = st.tuples(st.sampled_from(["worker", "ps"]), st.integers(0, 40), VALUES)


class Watch(DrivenService):
    """A profiler that knows one job with two pods."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Profiler, ProfilerSettings)
        self.do(self._begin())

    async def _begin(self) -> None:
        await self.client.publish(wire.JobSubmitted(job=JOB, spec=SPEC))
        for role in ("worker", "ps"):
            started = replace(example_of(PodStarted), pod=f"{role}-0", role=role)
            await self.client.publish(started)
        await self.client.publish(PlanApplied(job=JOB, version=1, plan=PLAN, took_s=1.0))

    async def report(self, role: str, body: bytes) -> int:
        return await self.store(f"tel.v1.{role}.{role}-0.{JOB}", body, f"report:{next(NUMBERS)}")


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    watch = Watch(tmp_path_factory.mktemp("watch"))
    yield watch
    watch.end()


def _body(role: str, index: int, value: Any) -> tuple[str, bytes]:
    """A report of now with one field changed, and the name of the field."""
    whole = {**json.loads(wire.encode(REPORTS[role])), "ended_at_s": time.time()}
    name = sorted(whole)[index % len(whole)]
    return name, json.dumps({**whole, name: value}).encode()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGES, min_size=1, max_size=12))
def test_what_cannot_be_true_is_set_aside_by_name(watch: Watch, changes: list[tuple[str, int, Any]]) -> None:
    sent: dict[str, tuple[str, bytes, bool]] = {}
    for role, index, value in changes:
        name, body = _body(role, index, value)
        well_formed = is_of_the_wire(f"tel.v1.{role}.{role}-0.{JOB}", body)
        sent[str(watch.do(watch.report(role, body)))] = (name, body, well_formed)
    end = watch.do(watch.report("worker", b"the last one"))
    watch.do(watch.set_aside(end))  # a job's messages are handled in order
    letters = {letter.headers["seq"]: letter for letter in watch.do(watch.client.dead_letters())}
    for seq, (name, body, well_formed) in sent.items():
        if not well_formed:
            assert letters[seq].headers["field"].split(".")[0] == name
        if seq in letters:
            assert letters[seq].headers["reason"] == "refused", letters[seq].headers["error"]
            assert letters[seq].headers["field"]
            assert letters[seq].headers["remedy"]
            assert letters[seq].data == body


@pytest.mark.parametrize("pod", ["worker-77", "ps-99"])
def test_a_pod_that_was_never_started_is_not_believed(watch: Watch, pod: str) -> None:
    role = pod.split("-")[0]
    report = replace(REPORTS[role], pod=pod, ended_at_s=time.time())
    letter = watch.do(watch.set_aside(watch.do(watch.client.publish(report))))
    assert letter.headers["field"] == "pod"
    assert pod in letter.headers["error"]


def test_a_pod_that_has_exited_is_not_believed(watch: Watch) -> None:
    started = replace(example_of(PodStarted), pod="worker-8")
    exited = replace(example_of(PodExited), pod="worker-8")
    watch.do(watch.client.publish(started))
    watch.do(watch.client.publish(exited))
    report = replace(REPORTS["worker"], pod="worker-8", ended_at_s=time.time())
    letter = watch.do(watch.set_aside(watch.do(watch.client.publish(report))))
    assert letter.headers["field"] == "pod"


def test_nothing_broke_a_machine(watch: Watch) -> None:
    assert watch.faults() == []

"""A run waits for its job as long as it has to, and no longer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from stretto_drills.chaos import course
from stretto_drills.chaos.course import ChaosCourse, Happening
from stretto_drills.chaos.faults import PlannedFault
from stretto_drills.chaos.record import StreamRecord
from stretto_drills.chaos.schedule import Intensity, Planned, Schedule
from stretto_drills.chaos.target import ChaosTarget, until
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import Message, example_of
from stretto_wire.contract.registry import subject_of


async def test_a_job_that_waits_for_room_behind_those_of_the_user_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "STALLED_S", 0.2)
    told: list[str] = []
    record = StreamRecord("chaos-1")
    run = ChaosCourse(ChaosTarget(tmp_path, record, cast("Any", None), shared=True), None, told.append)

    def take(kind: type[Message]) -> None:
        record.take(1, 0.0, subject_of(example_of(kind)), example_of(kind))

    take(PlanRefused)
    waiting = asyncio.create_task(run._wait())
    assert not await until(lambda: bool(run.trouble), 0.5)
    assert told == ["it waits for room: needs 6 cores, 2 are free: waits for capacity"]
    take(PlanDecided)  # from now on it hangs
    assert await until(lambda: bool(run.trouble), 5)
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_job_that_no_other_job_can_keep_waiting_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "STALLED_S", 0.2)
    record = StreamRecord("chaos-1")
    run = ChaosCourse(ChaosTarget(tmp_path, record, cast("Any", None)), None, lambda line: None)
    record.take(1, 0.0, subject_of(example_of(PlanRefused)), example_of(PlanRefused))
    waiting = asyncio.create_task(run._wait())
    assert await until(lambda: bool(run.trouble), 5)
    waiting.cancel()
    await asyncio.wait([waiting])


class Painless(PlannedFault):
    """Strikes nobody."""

    async def inject(self) -> str:
        return "nobody"

    async def heal(self) -> bool:
        return True


async def test_a_fault_that_waits_for_a_migration_keeps_no_other_from_striking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = StreamRecord("chaos-1", started=True, samples_done=1)
    kinds = ("worker-kill-migrating", "worker-kill")
    for kind in kinds:
        monkeypatch.setitem(course.FAULTS, kind, Painless)
    planned = [Planned(n, kind, 0.5, "migration" if n == 1 else "", 0.0, 0.0, "") for n, kind in enumerate(kinds, 1)]
    schedule = Schedule(1, Intensity.ROUGH, 1, tuple(planned))
    run = ChaosCourse(ChaosTarget(tmp_path, record, cast("Any", None)), schedule, lambda line: None, _furthest=1.0)
    run._slots = asyncio.Semaphore(1)
    waits, strikes = (Happening(one) for one in planned)
    async with asyncio.TaskGroup() as group:
        for happening in (waits, strikes):
            group.create_task(run._perform(happening))
        assert await until(lambda: strikes.well, 5)
        assert waits.at_s is None
        record.migration = {"sources": ["ps-0"], "destinations": ["ps-1"]}
    assert waits.well

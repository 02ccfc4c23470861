"""A run waits for its job as long as it has to, and no longer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from stretto_cli.chaos import course
from stretto_cli.chaos.course import Course
from stretto_cli.chaos.record import Record
from stretto_cli.chaos.world import World, until
from stretto_wire import PlanDecided, PlanRefused
from stretto_wire.base import Message
from stretto_wire.examples import EXAMPLES
from stretto_wire.registry import subject_of


async def test_a_job_that_waits_for_room_behind_those_of_the_user_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "STALLED_S", 0.2)
    told: list[str] = []
    record = Record("chaos-1")
    run = Course(World(tmp_path, record, cast("Any", None)), None, told.append)

    def take(kind: type[Message]) -> None:
        record.take(1, 0.0, subject_of(EXAMPLES[kind]), EXAMPLES[kind])

    take(PlanRefused)
    waiting = asyncio.create_task(run._wait())
    assert not await until(lambda: bool(run.trouble), 0.5)
    assert told == ["it waits for room: needs 6 cores, 2 are free: waits for capacity"]
    take(PlanDecided)  # from now on it hangs
    assert await until(lambda: bool(run.trouble), 5)
    waiting.cancel()
    await asyncio.wait([waiting])

"""Processes that hold the bytes of a curve, under kernel limits, with all services that act on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_stage import MIB, Growth, MemoryStage, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

ROW_BYTES = 1000.0


def growth(job: str, gained: np.ndarray, limit_mib: int) -> Growth:
    """One server of 120 MiB and ``gained`` MiB of rows in every window."""
    rows = (np.cumsum(gained) * MIB / ROW_BYTES)[None, :]
    tables = ROW_BYTES * rows
    return Growth(job, 120 * MIB + tables, tables, rows, limit_mib * MIB, ROW_BYTES)


async def test_memory_is_there_before_it_is_needed_and_a_step_that_nobody_foresees_is_told_as_what_it_is(
    tmp_path: Path,
) -> None:
    windows = 13
    bursts = np.where(np.arange(windows) % 4 == 0, 24.0, 4.0)
    step = np.where(np.arange(windows) == 8, 500.0, 2.0)
    async with MemoryStage(tmp_path) as stage:
        await stage.play(growth("bursty", bursts, 170), growth("step", step, 256))
    grown, killed = stage.seen["bursty"], stage.seen["step"]
    assert growth("bursty", bursts, 170).used.max() > 170 * MIB
    assert grown.exits == ["stopped"], "only the end of the job ended its server"
    assert max(grown.limits) > 170 * MIB
    assert killed.exits[0] == "oom-killed"
    asked = [forecast for forecast in killed.forecasts if "was killed" in forecast.reason]
    assert asked, "it comes back with more than it was killed with"
    assert asked[0].recommended_ps_memory_bytes == int(1.5 * asked[0].limit_ps_memory_bytes)

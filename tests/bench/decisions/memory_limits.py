"""Generated growth under real memory limits: processes that hold the bytes, control groups, and all services.

It takes two minutes, and needs a memory control group that may be written.

Two jobs of each family (libs/core/tests/oom/curves.py) and one with a step without a sign before. Their servers are
processes that touch the pages, in the limits that the real actuator sets after the real watch's forecasts and the real
arbiter's plans (tests/integration/memory_stage.py). A window of telemetry is half a second, and the watch's times are
shorter by the same factor.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.bench.rows import Row, row_at_most

MOMENTS = 60
WINDOW_S = 5.0 / 10
LEAD_S = 30.0 / 10
TOTAL_BYTES_MAX = 1.6e9
SERVERS_MAX = 3
MIB = 2**20


def helpers() -> tuple[Any, Any, Any]:
    return tuple(importlib.import_module(name) for name in ("curves", "play", "memory_stage"))  # type: ignore[return-value]


def growth(family: str, first_seed: int, share: float) -> Any:
    """Return the first curve that fits this machine and is foreseeable throughout. ``share`` as in play.Case."""
    curves, play, stage = helpers()
    for seed in range(first_seed, first_seed + 1000):
        curve = curves.generate(family, seed, MOMENTS)
        used = np.array([curve.used_bytes(held, pod) for pod, held in enumerate(curve.split)])
        fits = used[:, -1].sum() <= TOTAL_BYTES_MAX and used[:, -1].max() > 1.3 * used[:, 6].max()
        if not fits or curve.servers > SERVERS_MAX:
            continue
        tables = np.array([curve.table_bytes(held) for held in curve.split])
        rows = np.array([curve.rows[:, held].sum(1) for held in curve.split])
        if not play.Play(curve, play.Case(0.5)).foreseeable:
            continue
        begin = 1.06 * used[:, :8].max()
        limit = -share * used.max() if share < 0 else begin + max(0.0, used.max() - begin) * share
        return stage.Growth(f"{family}-{seed}", used, tables, rows, int(limit), curve.row_bytes)
    raise RuntimeError(f"no curve of family {family} fits")


def step() -> Any:
    """Return a curve that grows by half a GiB within one window, without a sign before."""
    *_, stage = helpers()
    used = np.full((1, 24), 150.0 * MIB)
    used[0, 16:] += 512 * MIB
    tables = used - 120 * MIB
    return stage.Growth("step", used, tables, tables / 200, 300 * MIB, 200.0)


async def batch(first_seed: int, shares: tuple[float, ...], *more: Any) -> list[dict[str, Any]]:
    curves, _, stage = helpers()
    jobs = [growth(family, first_seed, share) for family, share in zip(curves.FAMILIES, shares, strict=True)]
    jobs += more
    with tempfile.TemporaryDirectory() as folder:
        async with stage.MemoryStage(Path(folder), LEAD_S) as running:
            await running.play(*jobs)
            seen = dict(running.seen)
    return [
        {
            "job": job.job,
            "servers": len(job.rows),
            "began": job.limit,
            "need": int(job.used.max()),
            "ended": seen[job.job].limits[-1],
            "changes": len(seen[job.job].limits) - 1,
            "exits": [reason for reason in seen[job.job].exits if reason != "stopped"],
        }
        for job in jobs
    ]


def run() -> list[Row]:
    """Return rows over all jobs; one without a bar where there can be no real limits."""
    *_, stage = helpers()
    if reason := stage.missing():
        return [row_at_most("killed where foreseeable", float("nan"), "jobs", None, f"not measured: {reason}")]
    found = asyncio.run(batch(10_000, (0.5, 0.3, 0.4, -1.8), step()))
    found += asyncio.run(batch(20_000, (0.3, 0.5, -1.8, 0.4)))
    show(found)
    foreseeable = [job for job in found if job["job"] != "step"]
    lost = [job["job"] for job in foreseeable if job["exits"]]
    above = 100 * float(np.mean([job["ended"] / job["need"] - 1 for job in foreseeable]))
    changes = sum(job["changes"] for job in foreseeable)
    told = next(job["exits"] for job in found if job["job"] == "step")[:1] == ["oom-killed"]
    jobs = f"of {len(foreseeable)}, with real limits {' '.join(lost)}"
    return [
        row_at_most("killed where foreseeable", len(lost), "jobs", 0, jobs.strip()),
        # eight short jobs, on a machine that may be busy: the bar is on the 200 of the module `memory`
        row_at_most("real memory above need, at the end", above, "%", None, f"{changes} changes of limits"),
        row_at_most("a step not told as oom-killed", int(not told), "jobs", 0, "512 MiB within one window"),
    ]


def show(found: list[dict[str, Any]]) -> None:
    shown = Table(title="real memory limits", title_justify="left")
    for column in ("job", "servers", "began with", "needs", "ended with", "above need", "changes", "killed"):
        shown.add_column(column, justify="left" if column in ("job", "killed") else "right")
    for job in found:
        sizes = [f"{job[name] / MIB:,.0f} MiB" for name in ("began", "need", "ended")]
        above = f"{job['ended'] / job['need'] - 1:+.0%}"
        shown.add_row(job["job"], str(job["servers"]), *sizes, above, str(job["changes"]), ", ".join(job["exits"]))
    Console(width=None if sys.stdout.isatty() else 140).print(shown)

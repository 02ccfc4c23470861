"""`stretto whatif spill`: what it costs to keep rows of parameter servers on their disks."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated, Any

import typer
from pydantic import Field
from rich.console import Group, RenderableType
from stretto_core.model import spilling
from stretto_messages.base import GIB

from ....errors import BadInput
from ....options import GatewayOptions
from ....reading import Count, FileArgument, Given, NotNegative, Positive, Share, checked, read_json, refuse
from ....render import Json, table

MIB = 2.0**20


class Curve(Given):
    """A job's parameter servers, all alike, with the miss ratios that one of them tells.

    ``miss_ratios``: the k-th of n is for k / n of the rows in memory. ``rows``, ``row_bytes``, ``other_bytes``,
    ``server_cpu_s``, ``server_cores``, ``limit_gib``, ``disk_gib``: of one server.
    ``other_cost_per_hour``: of the job without its servers' memory.
    """

    miss_ratios: Annotated[list[Share], Field(min_length=1, max_length=1024)]
    rows: Count
    row_bytes: Annotated[float, Field(gt=spilling.COLD_ROW_BYTES, le=MIB)]
    rows_per_step: Positive
    step_s: Positive
    reads_per_s: Positive
    compute_s: NotNegative = 0.0
    workers: Count = 1
    servers: Count = 1
    other_bytes: NotNegative = 0.0
    server_cpu_s: NotNegative = 0.0
    server_cores: Positive | None = None
    limit_gib: Positive | None = None
    disk_gib: NotNegative | None = None
    other_cost_per_hour: NotNegative = 0.0
    memory_gib_hour: NotNegative = 0.005
    disk_gib_hour: NotNegative = 0.0


class OfJob(Given):
    """Figures that replace a live job's, or come beside them."""


JobOption = Annotated[
    str | None,
    typer.Option("--job", metavar="JOB", help="a live job, whose figures count that FILE leaves out"),
]


def spill(options: GatewayOptions, file: FileArgument, job: JobOption = None) -> None:
    """Tell for each share of the rows in memory what a step reads, how fast it is, and what the job costs.

    FILE is JSON: miss ratios as servers tell them, rows and their bytes, a step, a disk, prices. With --job it may be
    {}: what it leaves out is as that job measures it. The whole format, with an example: libs/cli/WHATIF.md.
    """
    if job is None:
        given = read_json(file, Curve)
    else:
        stated = read_json(file, OfJob).model_extra or {}
        with options.connect() as gateway:
            view, told = gateway.job(job), gateway.events(job, 0, False, ("profile-measured",))
            measured = deque((each.data for each in told if each.data.get("miss_ratios")), 1)
        if not measured:
            remedy = "submit it with resources.ps.spill: emergency or auto, and wait for some steps"
            raise BadInput(f"--job {job}: its servers have measured no miss ratios; {remedy}")
        given = checked(of_job(measured[0], view) | stated, Curve, "")
    result = document_of(given)
    options.answer(result, lambda: _view(result))


def of_job(measured: Json, view: Json) -> Json:
    """Return the curve of a job by a window of its profile, of the server that has most rows, without its limit.

    What the window does not have is left out: the reads of a disk are known once rows take a quarter of the memory, and
    a window of an earlier Stretto lacks what none measured then.
    """
    server = max(measured["ps"], key=lambda each: each["categories"])
    steps = measured["throughput"] / measured["batch_size"] * measured["window_s"]
    plan, prices = measured["plan"], view["spec"]["prices"]
    memory_cost = plan["ps"] * plan["ps_memory_bytes"] / GIB * prices["memory_gib_hour"]
    found = {
        "miss_ratios": measured["miss_ratios"],
        "rows": server["categories"],
        "row_bytes": server["row_bytes"],
        "other_bytes": max(0, server["memory_used_bytes"] - server["table_bytes"]),
        "rows_per_step": server.get("rows_pulled", 0) / steps if steps else 0.0,
        "step_s": measured["step_time_s"],
        "compute_s": measured["times"]["grad_s"],
        "server_cpu_s": server["cpu_used_cores"] * measured["window_s"] / steps if steps else 0.0,
        "server_cores": server["cpu_limit_cores"],
        "reads_per_s": server.get("disk_reads_per_s"),
        "workers": plan["workers"],
        "servers": plan["ps"],
        "other_cost_per_hour": max(0.0, (view["cost_per_hour"] or 0.0) - memory_cost),
        "memory_gib_hour": prices["memory_gib_hour"],
        "disk_gib_hour": prices.get("disk_gib_hour"),
    }
    return {name: value for name, value in found.items() if value}


def document_of(given: Curve) -> dict[str, Any]:
    """Return the answer as a document: an option for each point of the curve, and for what the limit holds."""
    if any(after > before for before, after in zip(given.miss_ratios, given.miss_ratios[1:], strict=False)):
        refuse("miss_ratios", given.miss_ratios, "ratios that never rise: more rows in memory are never read more")
    points = len(given.miss_ratios)
    shares = {(k + 1) / points for k in range(points)}
    if given.limit_gib is not None:
        rest, limit = given.other_bytes, given.limit_gib * GIB
        shares.add(spilling.hot_rows(given.rows, given.row_bytes, rest, limit) / given.rows)
    options = [_option(given, share) for share in sorted(shares - {0.0})]
    held = [each for each in options if _is_held(given, each)]
    if not held:
        return {"feasible": False, "reason": _why_not(given, options)}
    cheapest = min(held, key=lambda each: (each["cost_per_million_steps"], -each["hot_share"]))
    return {"feasible": True, "cheapest": cheapest, "options": options}


def _option(given: Curve, hot_share: float) -> dict[str, Any]:
    memory = spilling.memory_bytes(given.rows, given.row_bytes, given.other_bytes, hot_share)
    disk = spilling.log_bytes(given.rows * (1 - hot_share), given.row_bytes)
    per_step = given.rows_per_step
    reads = spilling.reads_per_step(given.miss_ratios, hot_share, given.rows, per_step)
    step = spilling.Step(
        given.step_s,
        min(given.compute_s, given.step_s),
        given.workers,
        given.reads_per_s,
        per_step,
        given.server_cpu_s,
        given.server_cores or math.inf,
    )
    slow = step.slowdown_interval(spilling.Correction().interval(reads, per_step))
    per_s = given.workers / step.with_reads_s(reads)
    cost = given.other_cost_per_hour + given.servers / GIB * (
        memory * given.memory_gib_hour + disk * given.disk_gib_hour
    )
    full_per_s = given.workers / given.step_s
    return {
        "hot_share": hot_share,
        "memory_gib": memory / GIB,
        "disk_gib": disk / GIB,
        "reads_per_step": reads,
        "steps_per_s": per_s,
        "steps_per_s_interval": [full_per_s / (1 + slow.high), full_per_s / (1 + slow.low)],
        "cost_per_hour": cost,
        "cost_per_million_steps": cost / 3600 / per_s * 1e6,
    }


def _is_held(given: Curve, option: dict[str, Any]) -> bool:
    memory, disk = given.limit_gib, given.disk_gib
    fits = memory is None or option["memory_gib"] <= memory * (1 + 1e-9)
    return fits and (disk is None or option["disk_gib"] <= disk)


def _why_not(given: Curve, options: list[dict[str, Any]]) -> str:
    """Say which limit no option keeps to, with the least that would do."""
    least = options[0]
    if given.limit_gib is not None and least["memory_gib"] > given.limit_gib:
        return (
            f"limit_gib = {given.limit_gib:g}, but {least['hot_share']:.1%} of the rows in memory, with the entries of "
            f"the others, take {least['memory_gib']:.3f} GiB: raise it, or spread the rows over more servers"
        )
    disk = min(each["disk_gib"] for each in options if given.limit_gib is None or each["memory_gib"] <= given.limit_gib)
    return (
        f"disk_gib = {given.disk_gib:g}, but rows that find no room in memory take {disk:.3f} GiB: raise it or "
        "limit_gib, or spread the rows over more servers"
    )


def _view(result: dict[str, Any]) -> RenderableType:
    if not result["feasible"]:
        return f"not feasible: {result['reason']}"
    names = ("in memory", "memory GiB", "disk GiB", "reads/step", "steps/s", "90 %", "cost/h", "per 10⁶ steps")
    made = table("", *names, right=names)
    for each in result["options"]:
        low, high = each["steps_per_s_interval"]
        made.add_row(
            "→" if each == result.get("cheapest") else "",
            f"{each['hot_share']:.1%}",
            f"{each['memory_gib']:.3f}",
            f"{each['disk_gib']:.3f}",
            f"{each['reads_per_step']:.0f}",
            f"{each['steps_per_s']:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{each['cost_per_hour']:.4f}",
            f"{each['cost_per_million_steps']:.4f}",
        )
    return Group(made, "→ is the cheapest for what it trains")

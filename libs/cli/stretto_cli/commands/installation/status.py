"""``stretto status``: the processes of an installation on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text
from stretto_client import figures

from ... import render
from ...command import command
from ...errors import CliError
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer, connect


@command("Installation", "stretto status -o json | jq .ready")
def status(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = OutputForm.TABLE) -> None:
    """Show every process: ready or not and why, memory, processor time, restarts; and the alerts that hold now.

    Exit status 1 if a process is not ready.
    """
    from stretto_installation.one_machine.state import describe

    rows = asyncio.run(_processes(folder))
    ready = all(row["ready"] for row in rows)
    state = describe(folder)
    warnings = warnings_of(state["warnings"], rows)
    report = {**state, "warnings": warnings, "ready": ready, "processes": rows, "alerts": _alerts(folder)}
    answer(output, report, lambda: _table(report))
    if not ready:
        raise typer.Exit(1)


def _alerts(folder: Path) -> list[dict[str, Any]]:
    """Return the alerts that the gateway judges; none if it does not answer, which its row says."""
    with contextlib.suppress(CliError), connect(folder, None, None) as gateway:
        return list(gateway.alerts()["firing"])
    return []


async def _processes(folder: Path) -> list[dict[str, Any]]:
    from stretto_installation.one_machine.bus_health import noted
    from stretto_installation.one_machine.processes import used_by
    from stretto_installation.one_machine.state import read_state, readiness

    state = read_state(folder)
    of_bus = noted(folder)
    rows: list[dict[str, Any]] = []
    for name, entry in state["processes"].items():
        used = used_by(entry)
        report = await readiness(folder, name, entry["pid"])
        is_store = name in ("nats", "redis")
        stores = is_store and (name != "nats" or of_bus.stores)
        rows.append(
            {
                "name": name,
                "pid": entry["pid"],
                "ready": used is not None and (stores or report["ready"]),
                "why": of_bus.why if name == "nats" else reason_of(report),
                "memory_bytes": used.memory_bytes if used else 0,
                "cpu_s": used.cpu_s if used else 0.0,
                "restarts": entry["restarts"],
                "partitions": len(report["partitions"]) if "partitions" in report else None,
                "port": report.get("port"),
            }
        )
    return rows


def reason_of(report: dict[str, Any]) -> str:
    """Return why a service is not ready, of its answer at /readyz; empty: it has not said."""
    faults = [*report.get("faults", {}).values()]
    return str(report.get("refusal") or (faults[0] if faults else "") or report.get("warning", ""))


def warnings_of(at_start: list[str], rows: list[dict[str, Any]]) -> list[str]:
    """Return the warnings of the start, with the gateway's warnings of now: the gateway has read the streams since."""
    begin = "gateway: "
    now = [f"{begin}{row['why']}" for row in rows if row["name"] == "gateway" and row["ready"] and row["why"]]
    return [*(each for each in at_start if not each.startswith(begin)), *now]


def _table(report: dict[str, Any]) -> RenderableType:
    numbers = ("pid", "memory", "cpu", "restarts", "partitions")
    made = render.table("process", "state", *numbers, right=numbers)
    for row in report["processes"]:
        made.add_row(
            row["name"],
            "[green]ready[/green]" if row["ready"] else "[red]not ready[/red]",
            str(row["pid"] or "–"),
            figures.size(row["memory_bytes"]),
            figures.seconds(row["cpu_s"]),
            str(row["restarts"]),
            "" if row["partitions"] is None else str(row["partitions"]),
        )
    total = sum(row["memory_bytes"] for row in report["processes"])
    lacking = [row for row in report["processes"] if row["why"] and (row["name"] == "nats" or not row["ready"])]
    why = [f"[{'yellow' if row['ready'] else 'red'}]{row['name']}[/]: {escape(row['why'])}" for row in lacking]
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in report["warnings"]]
    alerts = [
        Text(f"{alert['alert']} {alert['subject']}: {alert['detail']}", style="red") for alert in report["alerts"]
    ]
    memory = f"[dim]{figures.size(total)} of memory; gateway {report['gateway_url']}[/dim]"
    power = f"[dim]power: {escape(report['power'])}[/dim]"
    return Group(made, *why, *warnings, *alerts, memory, power)

"""``stretto status``: the processes of an installation on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text
from stretto_client import figures

from ... import render
from ...command import command
from ...errors import CliError
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer, connect


@command("Installation", "stretto status -o json | jq .ready")
def status(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = OutputForm.TABLE) -> None:
    """Show every process: ready or not, memory, processor time, restarts; and the alerts that hold now.

    Exit status 1 if a process is not ready.
    """
    from stretto_installation.one_machine.state import describe

    rows = asyncio.run(_processes(folder))
    ready = all(row["ready"] for row in rows)
    report = {**describe(folder), "ready": ready, "processes": rows, "alerts": _alerts(folder)}
    answer(output, report, lambda: _table(report))
    if not ready:
        raise typer.Exit(1)


def _alerts(folder: Path) -> list[dict[str, Any]]:
    """Return the alerts that the gateway judges; none if it does not answer, which its row says."""
    with contextlib.suppress(CliError), connect(folder, None, None) as gateway:
        return list(gateway.alerts()["firing"])
    return []


async def _processes(folder: Path) -> list[dict[str, Any]]:
    from stretto_installation.one_machine.processes import used_by
    from stretto_installation.one_machine.state import read_state, readiness

    state = read_state(folder)
    rows: list[dict[str, Any]] = []
    for name, entry in state["processes"].items():
        used = used_by(entry)
        report = await readiness(folder, name, entry["pid"])
        is_store = name in ("nats", "redis")
        rows.append(
            {
                "name": name,
                "pid": entry["pid"],
                "ready": used is not None and (is_store or report["ready"]),
                "resident_bytes": used.resident_bytes if used else 0,
                "cpu_s": used.cpu_s if used else 0.0,
                "restarts": entry["restarts"],
                "partitions": len(report["partitions"]) if "partitions" in report else None,
                "port": report.get("port"),
            }
        )
    return rows


def _table(report: dict[str, Any]) -> RenderableType:
    numbers = ("pid", "memory", "cpu", "restarts", "partitions")
    made = render.table("process", "state", *numbers, right=numbers)
    for row in report["processes"]:
        made.add_row(
            row["name"],
            "[green]ready[/green]" if row["ready"] else "[red]not ready[/red]",
            str(row["pid"] or "–"),
            figures.size(row["resident_bytes"]),
            figures.seconds(row["cpu_s"]),
            str(row["restarts"]),
            "" if row["partitions"] is None else str(row["partitions"]),
        )
    total = sum(row["resident_bytes"] for row in report["processes"])
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in report["warnings"]]
    alerts = [
        Text(f"{alert['alert']} {alert['subject']}: {alert['detail']}", style="red") for alert in report["alerts"]
    ]
    return Group(
        made, *warnings, *alerts, f"[dim]{figures.size(total)} resident; gateway {report['gateway_url']}[/dim]"
    )

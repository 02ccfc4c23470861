"""Start and stop an installation on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import figures, render
from ..errors import BadInput, CliError, NotRunning
from ..options import DEFAULT_FOLDER, FolderOption, Output, OutputOption, answer, console, example, print_json

PANEL = "Installation"
START_S = 90.0
STOP_S = 60.0


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(
        rich_help_panel=PANEL,
        epilog=example("stretto up --detach --memory 16Gi", "stretto up --set STRETTO_ARBITER_SETTLE_S=10"),
    )(up)
    app.command(rich_help_panel=PANEL, epilog=example("stretto down"))(down)
    app.command("status", rich_help_panel=PANEL, epilog=example("stretto status -o json | jq .ready"))(show_status)


def up(
    folder: FolderOption = DEFAULT_FOLDER,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="leave it running in the background")] = False,
    cpu_cores: Annotated[float | None, typer.Option(min=0.1, help="of the cluster; default: this machine's")] = None,
    memory: Annotated[str | None, typer.Option(help="of the cluster, as in 8Gi; default: this machine's")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="of the gateway; 0: any free one")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a setting of a service, as in STRETTO_ARBITER_SETTLE_S=10")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start NATS, Redis, the eight services and the gateway, all on loopback, and keep them alive.

    The parameter servers of jobs are TensorFlow's, which listen on every interface without authentication.

    Without --detach it stays in the foreground; Ctrl-C ends everything, pods included.
    """
    from .. import embedded

    plan = embedded.Plan(folder, cpu_cores, _bytes(memory), port, _settings(settings or []))
    quiet = output is Output.JSON
    if detach:
        state = start_detached(plan)
        answer(output, state, lambda: _where(state))
        return

    def ready(installation: embedded.Installation) -> None:
        state = describe(folder)
        if quiet:
            print_json(state)
        else:
            console.print(_where(state))
            console.print("[dim]Ctrl-C ends everything[/dim]")

    def progress(text: str) -> None:
        if not quiet:
            console.print(f"[dim]{text}[/dim]")

    asyncio.run(embedded.run(plan, progress, ready))


def start_detached(plan: Any, tied: bool = False) -> dict[str, Any]:
    """Start a supervisor in a session of its own and wait until everything is ready. Raises CliError.

    ``tied``: once this thread has ended, however, it takes everything down.
    """
    from stretto_runtime import server

    from .. import embedded

    folder = plan.folder
    with contextlib.suppress(NotRunning):
        embedded.read_state(folder)
        raise CliError(f"an installation runs in {folder} already; `stretto status` shows it")
    embedded.make_folder(folder)
    log = folder / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "stretto_cli.embedded", embedded.as_argument(plan)]
    with log.open("wb") as file:
        supervisor = subprocess.Popen(
            server.tied(command, signal.SIGTERM) if tied else command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        return _await_ready(folder, supervisor, log)
    except BaseException:  # also who is interrupted leaves nothing running
        supervisor.terminate()  # it ends what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(STOP_S)
        raise


def _await_ready(folder: Path, supervisor: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    from .. import embedded

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if supervisor.poll() is not None:
            said = log.read_text(errors="replace").strip()[-2000:]
            before, failed, reason = said.rpartition(embedded.FAILED)
            kind = BadInput if supervisor.returncode == BadInput.status else CliError
            raise kind(f"the installation did not start: {reason if failed and reason else before or said}")
        with contextlib.suppress(NotRunning):
            if embedded.read_state(folder)["state"] == "ready":
                return describe(folder)
        time.sleep(0.05)
    raise CliError(f"not ready after {START_S:.0f} s; see {log}")


def describe(folder: Path) -> dict[str, Any]:
    """Where things are. Raises NotRunning."""
    from .. import embedded

    state = embedded.read_state(folder)
    gateway = json.loads((folder / "run" / "gateway.json").read_text())
    return {
        "folder": str(folder.resolve()),
        "pid": state["pid"],
        "ready_s": state["ready_s"],
        "gateway_url": f"http://{gateway['host']}:{gateway['port']}",
        "token_file": str(folder.resolve() / "gateway.token"),
        "nats_url": state["nats_url"],
    }


def _where(state: dict[str, Any]) -> str:
    return (
        f"ready after {figures.seconds(state['ready_s'])}\n"
        f"  gateway  {state['gateway_url']}  (token in {state['token_file']}; addresses at /openapi.json)\n"
        f"  bus      {state['nats_url']}  (credentials in {state['folder']}/nats/keys)\n"
        f"  state    {state['folder']}  (logs, spans, pods, checkpoints)"
    )


def down(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = Output.TABLE) -> None:
    """End everything that `stretto up` started, pods included. State stays in the folder."""
    from .. import embedded
    from ..leftovers import end_lost

    try:
        state = embedded.read_state(folder)
    except NotRunning:
        ended = end_lost(folder)
        if not ended:
            raise
        answer(output, {"ended": ended}, lambda: f"{ended} processes of a lost supervisor ended")
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        try:
            embedded.read_state(folder)
        except NotRunning:
            answer(output, {"ended": len(state["processes"])}, lambda: "everything ended")
            return
        time.sleep(0.05)
    raise CliError(f"still running after {STOP_S:.0f} s; see {folder / 'logs' / 'supervisor.log'}")


def show_status(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = Output.TABLE) -> None:
    """Show every process: ready or not, memory, processor time, restarts. Fails when one is not ready."""
    rows = asyncio.run(_look(folder))
    ready = all(row["ready"] for row in rows)
    report = {**describe(folder), "ready": ready, "processes": rows}
    answer(output, report, lambda: _status_table(report))
    if not ready:
        raise typer.Exit(1)


async def _look(folder: Path) -> list[dict[str, Any]]:
    from .. import embedded
    from ..processes import named_in

    state = embedded.read_state(folder)
    rows: list[dict[str, Any]] = []
    for name, entry in state["processes"].items():
        process = named_in(entry)
        report = await embedded.readiness(folder, name, entry["pid"])
        stored = name in ("nats", "redis")
        rows.append(
            {
                "name": name,
                "pid": entry["pid"],
                "ready": process is not None if stored else process is not None and report["ready"],
                "resident_bytes": process.memory_info().rss if process else 0,
                "cpu_s": sum(process.cpu_times()[:2]) if process else 0.0,
                "restarts": entry["restarts"],
                "partitions": len(report["partitions"]) if "partitions" in report else None,
                "port": report.get("port"),
            }
        )
    return rows


def _status_table(report: dict[str, Any]) -> Any:
    from rich.console import Group

    made = render.table("process", "state", "pid", "memory", "cpu", "restarts", "partitions",
                        right=("pid", "memory", "cpu", "restarts", "partitions"))  # fmt: skip
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
    return Group(made, f"[dim]{figures.size(total)} resident; gateway {report['gateway_url']}[/dim]")


def _bytes(text: str | None) -> int | None:
    from stretto_wire.spec import parse_bytes

    if text is None:
        return None
    try:
        return int(parse_bytes(text))
    except ValueError as error:
        raise BadInput(f"--memory {text}: {error}") from error


def _settings(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name.startswith("STRETTO_"):
            raise BadInput(f"--set {entry}: give NAME=VALUE with a name such as STRETTO_ARBITER_SETTLE_S")
        found[name] = value
    return found

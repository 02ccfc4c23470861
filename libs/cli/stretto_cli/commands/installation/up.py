"""``stretto up``: start an installation on this machine."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from stretto_client import figures

from ...command import command
from ...errors import BadInput
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer, console, print_json, quantity


@command("Installation", "stretto up --detach --memory 16Gi", "stretto up --set STRETTO_ARBITER_SETTLE_S=10")
def up(
    folder: FolderOption = DEFAULT_FOLDER,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave the installation running in background.")
    ] = False,
    cpu_cores: Annotated[
        float | None,
        typer.Option(
            parser=quantity("cores", 0.1, 10**6),
            metavar="CORES",
            help="CPU cores that training jobs may use in total, e.g. 4 or 1500m. Default: all of this machine's.",
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=quantity("bytes", 2**20, 2**60),
            metavar="SIZE",
            help="Memory that training jobs may use in total, e.g. 8Gi. Default: all of this machine's.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0 takes any free port.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting of a service, e.g. STRETTO_ARBITER_SETTLE_S=10; may be repeated."),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Take a store of the bus that is empty, damaged, older or another's as it is. Jobs that are not in it "
            "are forgotten: their files stay, their names are never given again.",
        ),
    ] = False,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Start NATS, Redis, the eight services and the gateway, all on loopback, and keep them alive.

    The parameter servers of jobs listen on no port: on sockets in their pods' folders, for who has the job's key.

    Without --detach the command stays in the foreground; Ctrl-C ends everything, pods included.
    """
    from stretto_installation.one_machine.detached import start_detached
    from stretto_installation.one_machine.programs import StartOptions
    from stretto_installation.one_machine.state import describe
    from stretto_installation.one_machine.supervisor import run

    options = StartOptions(folder, cpu_cores, memory, port, _settings(settings or []), forget)
    options.check_settings(os.environ)
    quiet = output is OutputForm.JSON
    if detach:
        state = start_detached(options, forks=True)
        answer(output, state, lambda: _addresses(state))
        return

    def ready(_: object) -> None:
        state = describe(folder)
        if quiet:
            print_json(state)
        else:
            console.print(_addresses(state))
            console.print("[dim]Ctrl-C ends everything[/dim]")

    def progress(text: str) -> None:
        if not quiet:
            console.print(f"[dim]{text}[/dim]")

    run(options, progress, ready)


def _addresses(state: dict[str, Any]) -> str:
    is_new = not state.get("ran_before")
    begun = f"ready after {figures.seconds(state['ready_s'])}" if is_new else "runs already; nothing was started"
    return (
        f"{begun}\n"
        f"  gateway  {state['gateway_url']}  (`stretto console` opens its pages; token in {state['token_file']})\n"
        f"  bus      {state['nats_url']}  (credentials in {state['folder']}/nats/keys)\n"
        f"  state    {state['folder']}  (logs, spans, pods, checkpoints)\n"
        f"  power    {state['power']}" + "".join(f"\n  warning  {warning}" for warning in state["warnings"])
    )


def _settings(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name.startswith("STRETTO_"):
            raise BadInput(f"--set {entry}: give NAME=VALUE with a name such as STRETTO_ARBITER_SETTLE_S")
        found[name] = value
    return found

"""See what a job does and why."""

from __future__ import annotations

import difflib
import time
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from stretto_wire import CHANNELS

from .. import explaining, figures, render
from ..client import Event, Gateway
from ..dashboard import dashboard
from ..errors import BadInput
from ..options import (
    DEFAULT_FOLDER,
    FolderOption,
    JobArgument,
    JobOption,
    Output,
    OutputOption,
    TokenOption,
    UrlOption,
    complete_from,
    connect,
    console,
    example,
    print_json,
)

PANEL = "See"
OVER = ("finished", "failed", "cancelled")
STATES = ("submitted", "waiting", "starting", "training", "finishing", *OVER)
EVENTS = tuple(channel.name for channel in CHANNELS if channel.kind == "evt")
NOISE = frozenset({"shard-leased", "shard-completed", "job-progressed", "profile-measured", "change-audited"})


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(rich_help_panel=PANEL, epilog=example("stretto watch ctr"))(watch)
    app.command(rich_help_panel=PANEL, epilog=example("stretto explain ctr --decision 3"))(explain)
    app.command(
        rich_help_panel=PANEL,
        epilog=example("stretto events --follow --job ctr", "stretto events -e plan-decided -o json | jq .data.plan"),
    )(events)


def watch(
    job: JobArgument,
    interval_s: Annotated[float, typer.Option("--interval", min=0.2, max=60, help="seconds between looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="look once and leave")] = False,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show throughput, plan, pods, shards and memory forecast, live, until the job ends.

    With -o json: one line a look, with everything known of the job.
    """
    with connect(folder, url, token) as gateway:
        view = gateway.job(job)
        if output is Output.JSON:
            print_json(view, lines=True)
            while not once and view["status"] not in OVER:
                time.sleep(interval_s)
                view = gateway.job(job)
                print_json(view, lines=True)
            return
        over = view["status"] in OVER
        if once or over or not console.is_terminal:
            console.print(dashboard(view, console.width))
            if once or over:
                return
        with Live(_screen(view), console=console, auto_refresh=False, vertical_overflow="crop") as live:
            live.refresh()
            while view["status"] not in OVER:
                time.sleep(interval_s)
                view = gateway.job(job)
                live.update(_screen(view), refresh=True)


def _screen(view: dict[str, Any]) -> RenderableType:
    return dashboard(view, console.width, console.height)


def explain(
    job: JobArgument,
    version: Annotated[int | None, typer.Option("--decision", "-d", help="only this one")] = None,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Say for every decision what was measured, the fitted model and its error, the candidates, why this one,
    what it was predicted to bring, and what it brought."""
    with connect(folder, url, token) as gateway:
        view = gateway.job(job)
    chosen = [d for d in view["decisions"] if version in (None, d["version"])]
    if version is not None and not chosen:
        known = ", ".join(str(d["version"]) for d in view["decisions"][-20:]) or "none yet"
        raise BadInput(f"--decision {version}: {job} has no such decision kept; its decisions are {known}")
    if output is Output.JSON:
        print_json({"job": job, "decisions": chosen, "refusals": view["refusals"]})
        return
    console.print(explaining.decisions(view, chosen))


def _known_events(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if name not in EVENTS:
            near = difflib.get_close_matches(name, EVENTS, n=1, cutoff=0.6)
            told = f"did you mean {near[0]}?" if near else f"known are {', '.join(EVENTS)}"
            raise BadInput(f"--event {name}: there is no such event; {told}")
    return names


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="stay for new ones")] = False,
    job: JobOption = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            "-e",
            autocompletion=complete_from(EVENTS),
            help="only of this name; repeatable",
            callback=_known_events,
        ),
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="only what was stored after this sequence")] = 0,
    everything: Annotated[bool, typer.Option("--all", "-a", help="shards, progress and profiles too")] = False,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Print events as they were stored. With -o json: one line each, of every kind."""
    with connect(folder, url, token) as gateway:
        for found in gateway.events(job, after, follow, tuple(event or ())):
            if output is Output.JSON:
                print_json(found.body, lines=True)
            elif everything or event or found.name not in NOISE:
                print_event(found, named=job is None)


def print_event(event: Event, named: bool = True) -> None:
    """One event in one line; ``named``: with its job, where there may be several."""
    body = event.body
    job = f"{body['job']:<16}  " if named else ""
    console.print(
        f"[dim]{event.id:>7}  {figures.clock(body['time_s'])}[/dim]  {job}"
        f"[bold]{body['service']}[/bold] {event.name}  [dim]{render.gist(event.name, body['data'])}[/dim]",
        soft_wrap=True,
    )


def follow_to_the_end(gateway: Gateway, job: str, quiet: bool = False) -> dict[str, Any]:
    """Print what happens to a job until it ends; returns its last view."""
    ends = {"job-finished", "job-failed", "job-cancelled"}
    for event in gateway.events(job):
        if not quiet and event.name not in NOISE:
            print_event(event, named=False)
        if event.name in ends:
            break
    view = gateway.job(job)
    while view["status"] not in OVER:
        time.sleep(0.2)
        view = gateway.job(job)
    return view

"""``stretto chaos``: a real job under a seeded schedule of real faults, and its outcome.

The faults are real: signals to real processes, files really damaged, caches really emptied. Their effects are read from
the job's own events and from the parameter servers' own counts; nothing is taken on trust.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer
from stretto_cli.errors import BadInput
from stretto_cli.options import Output, OutputOption, complaints, complete_from, console, example

from .job import MODELS
from .schedule import FAULTS, Intensity

SEEDS = 10**6


def register(app: typer.Typer) -> None:
    """Add the command."""
    lines = ("stretto chaos --seed 7", "stretto chaos --schedules 50 --undisturbed 5 --report chaos.html")
    app.command(rich_help_panel="Installation", epilog=example(*lines))(chaos)


def _known(kinds: list[str] | None) -> list[str] | None:
    for kind in kinds or ():
        if kind not in FAULTS:
            raise BadInput(f"there is no fault {kind}; known are {', '.join(FAULTS)}")
    return kinds


def _model(name: str) -> str:
    if name not in MODELS:
        raise BadInput(f"--model {name}: give one of {', '.join(MODELS)}")
    return name


def _page(path: Path | None) -> Path | None:
    """Refused before anything is started, not when minutes are over."""
    if path is None:
        return None
    if path.is_dir():
        raise BadInput(f"--report {path}: it is a folder; name a file, as in {path / 'chaos.html'}")
    if path.suffix == ".json":
        raise BadInput(f"--report {path}: this is where the JSON beside it goes; give {path.stem}.html")
    made = next(parent for parent in path.absolute().parents if parent.exists())  # what lacks below it is made
    if not made.is_dir() or not os.access(made, os.W_OK | os.X_OK):
        raise BadInput(f"--report {path}: {made} is not a folder that can be written; choose another place")
    return path


def chaos(
    seed: Annotated[int | None, typer.Option(min=0, help="of the schedule; default: a random one")] = None,
    schedules: Annotated[int, typer.Option(min=1, help="so many jobs in turn, with seeds from --seed on")] = 1,
    undisturbed: Annotated[int, typer.Option(min=0, help="so many jobs without faults before, to compare with")] = 0,
    intensity: Annotated[Intensity, typer.Option(help="how much happens to a job")] = Intensity.ROUGH,
    only: Annotated[
        list[str] | None,
        typer.Option(autocompletion=complete_from(FAULTS), callback=_known, help="only these faults; repeatable"),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(autocompletion=complete_from(FAULTS), callback=_known, help="not these faults; repeatable"),
    ] = None,
    model: Annotated[str, typer.Option(callback=_model, help="wide_deep, xdeepfm or dcn")] = "wide_deep",
    samples: Annotated[int | None, typer.Option(min=20_000, help="of each job; default: by intensity")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="of an installation that runs, to be tried; default: one of its own")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask before --folder is hurt")] = False,
    report: Annotated[
        Path | None, typer.Option(callback=_page, help="where the HTML timeline goes; JSON beside it")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="its own folder, also when all was exact")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a real job under fire: kill, freeze and damage by a seeded schedule what it depends on, and count.

    Workers, parameter servers, services, the bus, the cache and checkpoints are hit for real, while the plan changes
    and parameters move. At the end: every fault with its pauses, the books by the servers' own count, and a timeline.
    Exit status 0 only if every job completed with nothing lost and nothing repeated. Then the folder of its own
    installation is removed, unless --keep; else it is kept, with logs and streams, and named.

    With --folder an installation of yours is hurt: its bus, cache and all its services, and through them every job in
    it; only of the job of this command are pods killed.
    """
    from . import script

    if only and not set(only) - set(without or ()):
        raise BadInput("--without takes away every fault that --only names: leave out one of them")
    if folder is not None and not yes:
        _ask(folder)
    wish = script.Wish(
        seed=secrets.randbelow(SEEDS) if seed is None else seed,
        schedules=schedules,
        undisturbed=undisturbed,
        intensity=intensity,
        only=tuple(only or ()),
        without=tuple(without or ()),
        model=model,
        samples=samples,
        folder=folder,
        report=report,
        keep=keep,
    )
    raise typer.Exit(script.main(wish, quiet=output is Output.JSON))


def _ask(folder: Path) -> None:
    """Before an installation of the user's is hurt."""
    warning = (f"[yellow]In {folder} services, the bus and the cache will be killed and frozen; all its jobs will "
               "feel it, though none should lose a sample.[/yellow]")  # fmt: skip
    if not console.is_terminal:
        raise BadInput(f"--folder {folder}: an installation that runs is hurt only with --yes")
    complaints.print(warning)
    typer.confirm("Go on?", abort=True)

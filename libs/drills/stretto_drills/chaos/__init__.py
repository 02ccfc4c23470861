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
from stretto_cli.options import OutputForm, OutputOption, complaints, complete_from, console, example

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
    """Refuse a bad path before anything is started, not after minutes."""
    if path is None:
        return None
    if path.is_dir():
        raise BadInput(f"--report {path}: it is a folder; name a file, e.g. {path / 'chaos.html'}")
    if path.suffix == ".json":
        raise BadInput(f"--report {path}: the JSON report goes there; give {path.stem}.html")
    made = next(parent for parent in path.absolute().parents if parent.exists())  # missing folders below it are created
    if not made.is_dir() or not os.access(made, os.W_OK | os.X_OK):
        raise BadInput(f"--report {path}: {made} is not a writable folder; choose another place")
    return path


OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        autocompletion=complete_from(FAULTS), callback=_known, help="Inject only this kind of fault; may be repeated."
    ),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        autocompletion=complete_from(FAULTS), callback=_known, help="Do not inject this kind of fault; may be repeated."
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(help="Folder of a running installation to put under fire. Default: an installation of its own."),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(callback=_page, help="File for the HTML timeline; the JSON report is written next to it."),
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask before the installation in --folder is put under fire.")
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the installation's folder even if every job was exact.")]


def chaos(
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the schedule. Default: a random one.")] = None,
    schedules: Annotated[
        int, typer.Option(min=1, help="Number of jobs, one after another, with seeds from --seed on.")
    ] = 1,
    undisturbed: Annotated[int, typer.Option(min=0, help="Number of jobs without faults before, for comparison.")] = 0,
    intensity: Annotated[
        Intensity, typer.Option(help="Number and severity of the faults that hit a job.")
    ] = Intensity.ROUGH,
    only: OnlyOption = None,
    without: WithoutOption = None,
    model: Annotated[
        str, typer.Option(callback=_model, help="Model to train: wide_deep, xdeepfm or dcn.")
    ] = "wide_deep",
    samples: Annotated[
        int | None, typer.Option(min=20_000, help="Number of samples of each job. Default: by intensity.")
    ] = None,
    folder: FolderOption = None,
    yes: YesOption = False,
    report: ReportOption = None,
    keep: KeepOption = False,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Put a real job under a seeded schedule of real faults, and count its samples.

    The faults hit workers, parameter servers, services, the bus, the cache and checkpoints, while the plan changes and
    parameters move. The report lists every fault with its pauses, the books by the servers' own counts, and a timeline.
    Exit status 0 only if every job completed with nothing lost and nothing repeated. Then the installation's folder is
    removed, unless --keep; otherwise it is kept, with logs and streams, and printed.

    With --folder the faults hit an installation of yours: its bus, cache and services, and through them all its jobs.
    Only pods of this command's own job are killed.
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
    raise typer.Exit(script.main(wish, quiet=output is OutputForm.JSON))


def _ask(folder: Path) -> None:
    """Ask before an installation of the user's is put under fire."""
    warning = (
        f"[yellow]In {folder} services, the bus and the cache will be killed and frozen; all its jobs will "
        "feel it, though none should lose a sample.[/yellow]"
    )
    if not console.is_terminal:
        raise BadInput(
            f"--folder {folder}: without a terminal to ask, a running installation is put under fire only with --yes"
        )
    complaints.print(warning)
    typer.confirm("Go on?", abort=True)

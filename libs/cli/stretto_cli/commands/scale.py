"""``stretto scale``: ask for another number of pods."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import figures
from ..errors import BadInput
from ..options import (
    DEFAULT_FOLDER,
    FolderOption,
    JobArgument,
    Output,
    OutputOption,
    TokenOption,
    UrlOption,
    answer,
    connect,
    example,
    same_gateway,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs", epilog=example("stretto scale ctr --workers 4 --ps 2"))(scale)


def scale(
    job: JobArgument,
    workers: Annotated[int | None, typer.Option(min=0, help="Number of workers that the job should have.")] = None,
    ps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of parameter servers; parameters move while the job trains."),
    ] = None,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Ask for another number of workers or parameter servers, while the job trains.

    The request is granted if there is room, within the limits of the specification. A job with `resources.fixed`
    keeps the new numbers; for any other job, Stretto continues from there to what it finds better.
    """
    wanted = {name: count for name, count in (("workers", workers), ("ps", ps)) if count is not None}
    if not wanted:
        raise BadInput("nothing to change: give --workers or --ps")
    with connect(folder, url, token) as gateway:
        has = gateway.job(job).get("plan")
        done = gateway.scale(job, wanted)
    result = "has this plan already" if done["plan"] == has else "asked for"
    watch = f"stretto watch {job}{same_gateway(folder, url)}"
    answer(output, done, lambda: f"{job}: {result} {figures.short_plan(done['plan'])}; [bold]{watch}[/bold] shows it")

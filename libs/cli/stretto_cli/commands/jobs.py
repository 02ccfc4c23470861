"""``stretto jobs``: the list of jobs."""

from __future__ import annotations

from typing import Annotated, get_args

import typer
from stretto_wire.rest.views import Status

from .. import render
from ..options import (
    DEFAULT_FOLDER,
    FolderOption,
    OutputForm,
    OutputOption,
    TokenOption,
    UrlOption,
    answer,
    complete_from,
    connect,
    console,
    example,
    same_gateway,
)

JOB_STATES: tuple[Status, ...] = get_args(Status)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("jobs", rich_help_panel="Jobs", epilog=example("stretto jobs --status training"))(list_jobs)


def list_jobs(
    status: Annotated[
        str | None,
        typer.Option(autocompletion=complete_from(JOB_STATES), help="List only jobs in this state, e.g. training."),
    ] = None,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List all jobs."""
    with connect(folder, url, token) as gateway:
        found = gateway.jobs(status)
    answer(output, found, lambda: render.jobs(found, console.width, same_gateway(folder, url)))

"""``stretto checkpoint``: take a checkpoint of a job."""

from __future__ import annotations

import typer

from ..options import (
    DEFAULT_FOLDER,
    FolderOption,
    JobArgument,
    OutputForm,
    OutputOption,
    TokenOption,
    UrlOption,
    answer,
    connect,
    example,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs", epilog=example("stretto checkpoint ctr"))(checkpoint)


def checkpoint(
    job: JobArgument,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Take a checkpoint now, or as soon as the one under way is taken. Training goes on while it is written."""
    with connect(folder, url, token) as gateway:
        done = gateway.checkpoint(job)
    answer(output, done, lambda: f"checkpoint {done['id']} of {job} started")

"""``stretto cancel``: end a job."""

from __future__ import annotations

from typing import Annotated

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
    app.command(rich_help_panel="Jobs", epilog=example('stretto cancel ctr --reason "wrong data"'))(cancel)


def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Reason for cancelling; stored with the event.")] = "",
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """End a job. Its last checkpoint keeps what it has trained until then."""
    with connect(folder, url, token) as gateway:
        done = gateway.cancel(job, reason)
    answer(output, done, lambda: f"{job} cancelled")

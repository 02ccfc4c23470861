"""Tell a growing job of more data."""

from __future__ import annotations

from typing import Annotated

import typer

from ..client import Json
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
)

GROUP = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    add_epilog = example("stretto data add ctr day=2026-11-21 --samples 1440000 --priority 1")
    GROUP.command(epilog=add_epilog)(add)
    GROUP.command(epilog=example("stretto data close ctr"))(close)
    app.add_typer(GROUP, name="data", rich_help_panel="Jobs", help="Give a growing job more data, or close it.")


def add(
    job: JobArgument,
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="its name, as `read` receives it")],
    samples: Annotated[int, typer.Option(min=1, help="all that it has now, with what it had before")],
    priority: Annotated[int, typer.Option(min=-1000, max=1000, help="higher is trained first")] = 0,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Say how many samples a partition has now. Workers that wait for data begin at once.

    It states a total: saying it twice changes nothing. The job has `growing: true` in its dataset.
    """
    part = {"name": partition, "samples": samples, "priority": priority}
    with connect(folder, url, token) as gateway:
        told = gateway.data(job, {"partitions": [part]})
    answer(output, told, lambda: _shown(told))


def close(
    job: JobArgument,
    output: OutputOption = Output.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Say that nothing more comes. The job completes when all it has is trained. This is final."""
    with connect(folder, url, token) as gateway:
        told = gateway.data(job, {"close": True})
    answer(output, told, lambda: _shown(told))


def _shown(told: Json) -> str:
    more = "and it grows" if told["growing"] else "closed"
    return f"{told['job']}: {told['samples']:,} samples in {told['partitions']} partitions, {more}"

"""``stretto data``: give a growing job more data, or close its dataset."""

from __future__ import annotations

from typing import Annotated

import typer
from stretto_client.documents import Json

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

GROUP = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    add_epilog = example("stretto data add ctr day=2026-11-21 --samples 1440000 --priority 1")
    GROUP.command(epilog=add_epilog)(add)
    GROUP.command(epilog=example("stretto data close ctr"))(close)
    app.add_typer(GROUP, name="data", rich_help_panel="Jobs", help="Give a growing job more data, or close it.")


def add(
    job: JobArgument,
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="Name of the partition, as `read` receives it.")
    ],
    samples: Annotated[
        int, typer.Option(min=1, help="Total number of samples in the partition, including earlier ones.")
    ],
    priority: Annotated[
        int, typer.Option(min=-1000, max=1000, help="Priority: a partition with a higher one is trained first.")
    ] = 0,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """State how many samples a partition has now. Workers that wait for data start at once.

    The number is a total, so stating it twice changes nothing. The job must have `growing: true` in its dataset.
    """
    part = {"name": partition, "samples": samples, "priority": priority}
    with connect(folder, url, token) as gateway:
        answered = gateway.data(job, {"partitions": [part]})
    answer(output, answered, lambda: _summary(answered))


def close(
    job: JobArgument,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """State that no more data will come. The job completes when all its data are trained. This is final."""
    with connect(folder, url, token) as gateway:
        answered = gateway.data(job, {"close": True})
    answer(output, answered, lambda: _summary(answered))


def _summary(answered: Json) -> str:
    more = "still growing" if answered["growing"] else "closed"
    return f"{answered['job']}: {answered['samples']:,} samples in {answered['partitions']} partitions, {more}"

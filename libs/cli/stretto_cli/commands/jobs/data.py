"""``stretto data``: give a growing job more data, or close its dataset."""

from __future__ import annotations

from typing import Annotated

import typer
from stretto_client.documents import Json

from ...command import CommandGroup
from ...options import GatewayOptions, JobArgument

GROUP = CommandGroup(__name__, "data", "Jobs", "Give a growing job more data, or close it.")


@GROUP.command("stretto data add ctr day=2026-11-21 --samples 1440000 --priority 1")
def add(
    options: GatewayOptions,
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
) -> None:
    """State how many samples a partition has now. Workers that wait for data start at once.

    The number is a total, so stating it twice changes nothing. The job must have `growing: true` in its dataset.
    """
    part = {"name": partition, "samples": samples, "priority": priority}
    with options.connect() as gateway:
        answered = gateway.data(job, {"partitions": [part]})
    options.answer(answered, lambda: _summary(answered))


@GROUP.command("stretto data close ctr")
def close(options: GatewayOptions, job: JobArgument) -> None:
    """State that no more data will come. The job completes when all its data are trained. This is final."""
    with options.connect() as gateway:
        answered = gateway.data(job, {"close": True})
    options.answer(answered, lambda: _summary(answered))


def _summary(answered: Json) -> str:
    more = "still growing" if answered["growing"] else "closed"
    return f"{answered['job']}: {answered['samples']:,} samples in {answered['partitions']} partitions, {more}"

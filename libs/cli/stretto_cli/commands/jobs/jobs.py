"""``stretto jobs``: the list of jobs."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from ... import render
from ...command import command
from ...options import GatewayOptions, complete_from, console


def _state(incomplete: str) -> list[str]:
    """Complete the name of a job's state."""
    from stretto_wire.rest.views import Status  # a list of jobs needs none of its records

    return complete_from(get_args(Status))(incomplete)


@command("Jobs", "stretto jobs --status training", name="jobs")
def list_jobs(
    options: GatewayOptions,
    status: Annotated[
        str | None,
        typer.Option(autocompletion=_state, help="List only jobs in this state, e.g. training."),
    ] = None,
) -> None:
    """List all jobs; `disk` is what their checkpoints take in the store now, also by team where there are teams.

    It holds neither the folders of pods, which `stretto clean --dry-run` measures on one machine, nor the log.
    """
    with options.connect() as gateway:
        found = gateway.jobs(status)
    options.answer(found, lambda: render.jobs(found, console.width, options.same_gateway()))

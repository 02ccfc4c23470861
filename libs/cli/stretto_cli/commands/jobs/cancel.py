"""``stretto cancel``: end a job."""

from __future__ import annotations

from typing import Annotated

import typer

from ...command import command
from ...options import GatewayOptions, JobArgument


@command("Jobs", 'stretto cancel ctr --reason "wrong data"')
def cancel(
    options: GatewayOptions,
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Reason for cancelling; stored with the event.")] = "",
) -> None:
    """End a job. Its last checkpoint keeps what it has trained until then."""
    with options.connect() as gateway:
        done = gateway.cancel(job, reason)
    options.answer(done, lambda: f"{job} cancelled")

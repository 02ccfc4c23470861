"""``stretto cancel``: end a job."""

from __future__ import annotations

from typing import Annotated

import typer

from ...command import command
from ...options import GatewayOptions, JobArgument
from ...render import cancelled


@command("Jobs", 'stretto cancel ctr --reason "wrong data"')
def cancel(
    options: GatewayOptions,
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Reason for cancelling; stored with the event.")] = "",
) -> None:
    """End a job for good. What it trained after its last stored checkpoint is lost: `stretto checkpoint` takes one."""
    with options.connect() as gateway:
        done = gateway.cancel(job, reason)
        view = gateway.job(job)
    options.answer(done, lambda: cancelled(view))

"""``stretto checkpoint``: take a checkpoint of a job."""

from __future__ import annotations

from ...command import command
from ...options import GatewayOptions, JobArgument


@command("Jobs", "stretto checkpoint ctr")
def checkpoint(options: GatewayOptions, job: JobArgument) -> None:
    """Take a checkpoint now, or as soon as the one under way is taken. Training goes on while it is written."""
    with options.connect() as gateway:
        done = gateway.checkpoint(job)
    options.answer(done, lambda: f"checkpoint {done['id']} of {job} started")

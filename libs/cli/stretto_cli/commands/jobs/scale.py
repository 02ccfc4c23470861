"""``stretto scale``: ask for another number of pods."""

from __future__ import annotations

from typing import Annotated

import typer
from stretto_client import figures
from stretto_messages.values import DATA_WORKERS_MAX

from ...command import command
from ...errors import BadInput
from ...options import GatewayOptions, JobArgument


@command("Jobs", "stretto scale ctr --workers 4 --ps 2")
def scale(
    options: GatewayOptions,
    job: JobArgument,
    workers: Annotated[int | None, typer.Option(min=0, help="Number of workers that the job should have.")] = None,
    ps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of parameter servers; parameters move while the job trains."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT|auto", help="Number of data workers; auto: as many as the data queue of the job tells."
        ),
    ] = None,
) -> None:
    """Ask for another number of workers, parameter servers or data workers, while the job trains.

    The request is granted if there is room, within the limits of the specification. A job with `resources.fixed`
    keeps the new numbers; for any other job, Stretto continues from there to what it finds better.
    """
    counts = {"workers": workers, "ps": ps, "data": None if data is None else _data_workers(data)}
    wanted = {name: count for name, count in counts.items() if count is not None}
    if not wanted:
        raise BadInput("nothing to change: give --workers, --ps or --data")
    with options.connect() as gateway:
        has = gateway.job(job).get("plan")
        done = gateway.scale(job, wanted)
    if set(wanted) == {"data"}:
        count = f"{wanted['data']} data worker{'s' * (wanted['data'] != 1)}"
        result = f"asked for {'data workers by its queue' if wanted['data'] == 'auto' else count}"
    else:
        same = "has this plan already" if done["plan"] == has else "asked for"
        result = f"{same} {figures.short_plan(done['plan'])}"
    watch = f"stretto watch {job}{options.same_gateway()}"
    options.answer(done, lambda: f"{job}: {result}; [bold]{watch}[/bold] shows it")


def _data_workers(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) > DATA_WORKERS_MAX:
        raise BadInput(f"--data {text}: a whole number up to {DATA_WORKERS_MAX}, or auto")
    return int(text)

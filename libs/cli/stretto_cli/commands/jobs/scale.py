"""``stretto scale``: ask for another number of pods."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from stretto_client import figures
from stretto_messages.values import DATA_WORKERS_MAX

from ...command import command
from ...errors import BadInput
from ...options import GatewayOptions, JobArgument
from ...render import Json


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
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Predict speed and cost, say whether it fits the cluster, and request nothing."),
    ] = False,
) -> None:
    """Ask for another number of workers, parameter servers or data workers, while the job trains.

    The request is granted if there is room, within the limits of the specification. A job with `resources.fixed`
    keeps the new numbers; for any other job, Stretto continues from there to what it finds better.
    """
    sizes = {name: count for name, count in (("workers", workers), ("ps", ps)) if count is not None}
    counts = {"workers": workers, "ps": ps, "data": None if data is None else _data_workers(data)}
    wanted = {name: count for name, count in counts.items() if count is not None}
    if not wanted:
        raise BadInput("nothing to change: give --workers, --ps or --data")
    if dry_run and data is not None:
        raise BadInput(f"--data {data}: --dry-run predicts numbers of workers and parameter servers alone")
    with options.connect() as gateway:
        if dry_run:
            predicted = gateway.what_if(job, sizes)
            options.answer(predicted, lambda: prediction(predicted, sizes))
            return
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


def prediction(found: Json, wanted: dict[str, int]) -> str:
    """Say what a size would bring, whether there is room for it, and how far it is beyond what was measured."""
    within, speed = found["throughput_interval"], figures.rate(found["throughput"])
    between = f"90 % between {figures.rate(within['low'])} and {figures.rate(within['high'])}"
    to_end = f", {figures.money(found['cost_to_end'])} to the end" if found["cost_to_end"] is not None else ""
    is_asked = all(found["plan"][name] == count for name, count in wanted.items())
    limited = "" if is_asked else ", the nearest size that the job file allows"
    ends = f"\nend: {figures.date_and_time(found['ends_at_s'])}" if found["ends_at_s"] is not None else ""
    return escape(
        f"{found['job']} with {figures.plan(found['plan'])}{limited}\n"
        f"speed: {speed} predicted, {between}; now {figures.rate(found['throughput_now'])}\n"
        f"cost: {figures.money(found['cost_per_hour'])} an hour{to_end}{ends}\n"
        f"room: {found['room']}\nmeasured: {found['measured']}\nnothing was requested"
    )


def _data_workers(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) > DATA_WORKERS_MAX:
        raise BadInput(f"--data {text}: a whole number up to {DATA_WORKERS_MAX}, or auto")
    return int(text)

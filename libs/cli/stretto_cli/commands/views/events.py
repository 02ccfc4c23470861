"""``stretto events``: the stored events."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer
from stretto_wire import CHANNELS

from ... import render
from ...command import command
from ...errors import BadInput
from ...options import GatewayOptions, JobOption, complaints, complete_from, print_json

EVENT_NAMES = tuple(channel.name for channel in CHANNELS if channel.kind == "evt")


def _known_names(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if name not in EVENT_NAMES:
            near = difflib.get_close_matches(name, EVENT_NAMES, n=1, cutoff=0.6)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(EVENT_NAMES)}"
            raise BadInput(f"--event {name}: there is no such event; {remedy}")
    return names


@command("See", "stretto events --follow --job ctr", "stretto events -e plan-decided -o json | jq .data.plan")
def events(
    options: GatewayOptions,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new events and print them too.")] = False,
    job: JobOption = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            "-e",
            autocompletion=complete_from(EVENT_NAMES),
            help="Print only events of this name; may be repeated.",
            callback=_known_names,
        ),
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Print only events stored after this sequence number.")] = 0,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Print the frequent events too: shards, progress, profiles, audit.")
    ] = False,
) -> None:
    """Print events in the order in which they were stored. With -o json: one line per event, of every kind."""
    with options.connect() as gateway:
        if job is not None and (lost := render.unreadable(gateway.job(job))):
            complaints.print(lost, soft_wrap=True)
        for found in gateway.events(job, after, follow, tuple(event or ())):
            if options.is_json:
                print_json(found.body, lines=True)
            elif everything or event or found.name not in render.FREQUENT_EVENTS:
                render.print_event(found, with_job=job is None)

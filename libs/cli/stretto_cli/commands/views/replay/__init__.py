"""``stretto replay``: decide everything about a past job again.

:mod:`.again` finds the services and the stream; :mod:`.report` shows the differences. Both load the runtime, so this
module imports them only when the command runs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from ....command import command
from ....errors import BadInput
from ....options import GatewayOptions, JobArgument
from ....solving import silent


@command(
    "See",
    "stretto replay JOB",
    "stretto replay JOB -s arbiter --set STRETTO_ARBITER_RHO=0",
    "stretto replay JOB --url https://gateway.example",
)
def replay(
    options: GatewayOptions,
    job: JobArgument,
    service: Annotated[
        list[str] | None, typer.Option("--service", "-s", help="Replay only this service; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Decide under another setting, e.g. STRETTO_ARBITER_RHO=0; may be repeated."),
    ] = None,
    bus: Annotated[
        str | None,
        typer.Option("--bus", help="Read the streams of an installation elsewhere, e.g. tls://nats:4222."),
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", help="File of the operator's credentials for --bus.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Certificates that the servers of --bus are verified against.")
    ] = None,
) -> None:
    """Decide everything about a job again, from the stream, and compare every decision bit by bit.

    The replay uses the code that is installed now and the settings of then, so every difference comes from the code
    (or from --set). Exit status 1 if anything differs. It works while the job runs, and after `stretto down`. With
    --url the gateway hands the stream on, to admins; with --bus it is read from the bus of Compose or Kubernetes
    itself (`keys/operator/bus.creds`, `keys/server/ca.crt`), for which no gateway need run.
    """
    from . import again, report

    if bus and options.url:
        raise BadInput(f"--bus {bus} and --url {options.url} (or STRETTO_CLI_URL): give the one that is to be read")
    elsewhere = again.BusElsewhere(bus, credentials, ca) if bus else None
    if options.url:
        elsewhere = again.GatewayElsewhere(options.url, options.token)
    with silent():
        found = asyncio.run(again.decide_again(options.folder, job, service or [], settings or [], elsewhere))
    options.answer(report.document(job, found), lambda: report.for_people(job, found))
    if not report.reproduced(found):
        raise typer.Exit(1)

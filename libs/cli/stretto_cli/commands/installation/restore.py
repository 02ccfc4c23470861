"""``stretto restore``: put a backup's streams into an installation that is down."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from stretto_client import figures

from ...command import command
from ...errors import CliError
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer, complaints

if TYPE_CHECKING:
    from stretto_installation.backup import Restored


@command("Installation", "stretto restore backups/monday", "stretto up")
def restore(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a backup.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Give up the streams that the installation has, instead of refusing.")
    ] = False,
    folder: FolderOption = DEFAULT_FOLDER,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Restore a backup into an installation that is down; `stretto up` then goes on with every job.

    Everything is checked before anything is written. Pods that were left are ended: each job returns to its latest
    checkpoint, and what was trained after that is trained again.
    """
    from stretto_bus.faults import Fault
    from stretto_installation.backup import EXPIRED
    from stretto_installation.errors import NotRunning
    from stretto_installation.one_machine.leftovers import end_lost
    from stretto_installation.one_machine.state import make_folder, read_state

    try:
        read_state(folder)
    except NotRunning:
        end_lost(folder)
    else:
        raise CliError(f"an installation runs in {folder}: end it with `stretto down`, then restore")
    make_folder(folder)
    try:
        restored = asyncio.run(_restore(folder, source, replace))
    except Fault as fault:
        raise CliError(str(fault)) from fault
    if restored.expired:
        complaints.print(EXPIRED, style="yellow", soft_wrap=not complaints.is_terminal)
    manifest = restored.manifest
    document = {"folder": str(folder.resolve()), "expired": restored.expired, **manifest.model_dump(mode="json")}
    moment = figures.date_and_time(manifest.taken_at_s)
    answer(output, document, lambda: f"restored to {moment}; `stretto up` goes on from there")


async def _restore(folder: Path, source: Path, replace: bool) -> Restored:
    from stretto_installation.backup import restore as restore_streams
    from stretto_installation.known_streams import named
    from stretto_installation.one_machine.bus import known_streams, started_alone, store_url_of
    from stretto_installation.provision import streams
    from stretto_installation.settings import StreamsSettings

    settings = StreamsSettings.of_streams()
    configs, now_s = streams(settings), time.time()
    known = known_streams(folder, store_url_of(os.environ), forget=True)
    async with started_alone(folder, "restore") as client:
        restored = await restore_streams(
            client.bus, source, configs, now_s, replace, lambda line: complaints.print(line)
        )
        names = [config["name"] for config in configs]
        if forgotten := await known.settle(client.bus, names, settings.rest_s, now_s):
            complaints.print(f"not in the backup, their names never to be given again: {named(forgotten)}")
        return restored

"""``stretto backup``: save an installation's streams while it runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from stretto_client import figures

from ...command import command
from ...errors import CliError
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer, complaints

if TYPE_CHECKING:
    from stretto_installation.backup import Manifest


@command("Installation", "stretto backup backups/monday")
def backup(
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for this backup.")],
    folder: FolderOption = DEFAULT_FOLDER,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Save all streams of an installation at one moment, while its jobs go on.

    The backup has the log, the services' state, dead letters and the public part of the keys, with a digest of each
    file; no private key and no checkpoint, which have stores of their own. `stretto restore` puts it back.
    """
    from stretto_bus.faults import Fault

    try:
        manifest = asyncio.run(_take(folder, target))
    except Fault as fault:
        raise CliError(str(fault)) from fault
    document = {"folder": str(target.resolve()), **manifest.model_dump(mode="json")}
    answer(output, document, lambda: f"saved in {target}, at {figures.date_and_time(manifest.taken_at_s)}")


async def _take(folder: Path, target: Path) -> Manifest:
    from stretto_installation.backup import take
    from stretto_installation.one_machine.bus import connected
    from stretto_installation.provision import streams
    from stretto_installation.server import keys_of

    names = [config["name"] for config in streams()]
    async with connected(folder, "backup") as client:
        return await take(
            client.bus, target, names, time.time(), keys_of(folder / "nats").trust, lambda line: complaints.print(line)
        )

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


@command("Installation", "stretto backup backups/monday", "stretto backup backups/monday --verify")
def backup(
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for this backup.")],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Take none, but read every message of the one in FOLDER, in a server that is removed then."
        ),
    ] = False,
    folder: FolderOption = DEFAULT_FOLDER,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Save all streams of an installation at one moment, while its jobs go on.

    The backup has the log, the services' state, dead letters and the public part of the keys, with a digest of each
    file; no private key and no checkpoint, which have stores of their own. `stretto restore` puts it back. Every
    message is read; exit status 1 says that some could not be, and all others were saved.
    """
    from stretto_bus.faults import Fault
    from stretto_installation.backup import UNREADABLE

    try:
        manifest, unreadable = asyncio.run(_verify(target) if verify else _take(folder, target))
    except Fault as fault:
        raise CliError(str(fault)) from fault
    document = {"folder": str(target.resolve()), **manifest.model_dump(mode="json"), "unreadable": unreadable}
    done = "every message read" if verify else "saved"
    if not (verify and unreadable):
        answer(output, document, lambda: f"{done} in {target}, of {figures.date_and_time(manifest.taken_at_s)}")
    if unreadable:
        raise CliError(UNREADABLE.format("; ".join(unreadable)))


async def _verify(target: Path) -> tuple[Manifest, list[str]]:
    from stretto_installation.backup import Manifest, read_back
    from stretto_installation.provision import streams
    from stretto_installation.server import scratch

    manifest = Manifest.read(target)
    async with scratch(target) as bus:
        return manifest, await read_back(bus, target, streams(), time.time())


async def _take(folder: Path, target: Path) -> tuple[Manifest, list[str]]:
    from stretto_installation.backup import take
    from stretto_installation.one_machine.bus import connected
    from stretto_installation.provision import streams
    from stretto_installation.server import keys_of

    names = [config["name"] for config in streams()]
    async with connected(folder, "backup") as client:
        trust = keys_of(folder / "nats").trust
        taken = await take(client.bus, target, names, time.time(), trust, lambda line: complaints.print(line))
    return taken, list(taken.unreadable)

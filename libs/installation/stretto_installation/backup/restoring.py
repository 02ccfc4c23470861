"""Restoration of a backup into a server without streams; everything is checked before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.reading.damage import find_damage
from stretto_bus.reading.ordered_consumer import read
from stretto_bus.reading.stream_snapshot import CHUNK_BYTES, restore_stream
from stretto_messages.base import counted
from stretto_runtime.restorations import Restoration, record
from stretto_wire.contract.registry import STATE, STATE_PREFIX, STREAM

from ..errors import BackupError
from ..known_streams import NOT_FOUND
from . import entries
from .manifest import Manifest, SavedStream

STORED_AT_ONCE = 500
EXPIRED = (
    "inputs of about the last second before the backup may have expired since (telemetry is kept for an hour): what "
    "was decided from them stands in the log, and services have forgotten it"
)
"""Text about a restoration after ``Manifest.complete_until_s``."""
AGAIN = "nothing can use what is there now; restore again with --replace"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restoration. ``expired``: inputs about the last seconds before the backup may be missing."""

    manifest: Manifest
    expired: bool


def check(folder: Path, configs: Sequence[dict[str, Any]]) -> Manifest:
    """Check a backup against its own digests, and for every stream that this version has. Raises BackupError."""
    manifest = Manifest.read(folder)
    manifest.check_files(folder)
    for config in configs:
        manifest.stream(config["name"])
    path = folder / manifest.stream(STATE).file.name
    entries.check_within(entries.read_lines(path), manifest.stream(STREAM).last_seq)
    return manifest


async def restore(
    bus: Bus,
    folder: Path,
    configs: Sequence[dict[str, Any]],
    now_s: float,
    replace: bool = False,
    report: Report = lambda _: None,
) -> Restored:
    """Make the streams of ``configs`` (``provision.streams``) with the content of the backup in ``folder``.

    With ``replace``, what the server has is removed. Services must not run, and pods of the old installation must have
    ended: its ledger knows nothing of what they did since.

    Raises:
        BackupError: the backup is damaged, or the server is in use; nothing was changed unless the text says so.
        BusFault: the server refused or stopped.
    """
    manifest = check(folder, configs)
    if bus.server_version < manifest.server_version:
        raise BackupError(
            f"nats-server {_dotted(bus.server_version)} is older than {_dotted(manifest.server_version)}, which wrote "
            "the backup: restore into that version or a later one"
        )
    await _make_room(bus, [config["name"] for config in configs], replace)
    for config in configs:
        saved = manifest.stream(config["name"])
        if config["name"] == STATE:
            await _restore_entries(bus, config, saved, folder)
        else:
            await _restore_stream(bus, config, saved, folder)
        report(f"{saved.stream}: {counted(saved.messages, 'message')} up to {saved.last_seq:,}")
    log_seq = manifest.stream(STREAM).last_seq
    try:
        await record(bus, Restoration(log_seq=log_seq, taken_at_s=manifest.taken_at_s, restored_at_s=now_s))
    except BusFault as fault:
        raise BackupError(f"the record of this restoration was not stored: {fault}; {AGAIN}") from fault
    return Restored(manifest, now_s > manifest.complete_until_s)


async def read_back(bus: Bus, folder: Path, configs: Sequence[dict[str, Any]], now_s: float) -> list[str]:
    """Restore the backup in ``folder`` into an empty server that nobody else uses, and read every message.

    Returns what cannot be read, in words, and what could not be when it was taken. Raises as ``restore`` does.
    """
    manifest = (await restore(bus, folder, configs, now_s)).manifest
    found = [await find_damage(bus, config["name"]) for config in configs]
    return [*manifest.unreadable, *(str(damage) for damage in found if damage is not None)]


async def _make_room(bus: Bus, names: Sequence[str], replace: bool) -> None:
    """Remove streams without messages, or with ``replace`` all. Raises BackupError: services run, or they have some."""
    found: dict[str, int] = {}
    for name in names:
        try:
            found[name] = int((await bus.ask(f"STREAM.INFO.{name}"))["state"]["last_seq"])
        except BusFault as fault:
            if fault.code != NOT_FOUND:
                raise
    if STATE in found:
        members = await read(bus, STATE, [f"{STATE_PREFIX}member.>"], deliver_policy="last_per_subject")
        if alive := [stored.subject.rpartition(".")[2] for stored in members if stored.data]:
            raise BackupError(
                f"{len(alive)} replicas of services run, {alive[0]} among them: stop all services (their leases end "
                "within seconds), then restore"
            )
    used = [f"{name} ({counted(last_seq, 'message')} so far)" for name, last_seq in found.items() if last_seq]
    if used and not replace:
        raise BackupError(
            f"the server is not empty: {', '.join(used)}; restore into an empty one, or give up what is there with "
            "--replace"
        )
    for name in found:
        await bus.ask(f"STREAM.DELETE.{name}", timeout_s=60)


async def _restore_stream(bus: Bus, config: dict[str, Any], saved: SavedStream, folder: Path) -> None:
    try:
        state = await restore_stream(bus, config, _pieces(folder / saved.file.name))
    except BusFault as fault:
        raise BackupError(f"{saved.stream} was not restored: {fault}; {AGAIN}") from fault
    if state.last_seq != saved.last_seq:
        raise BackupError(f"{saved.stream} ends at {state.last_seq}, its backup at {saved.last_seq}; {AGAIN}")


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


async def _restore_entries(bus: Bus, config: dict[str, Any], saved: SavedStream, folder: Path) -> None:
    """Store the entries in their old order, under revisions that the old installation never gave."""
    created = {**config, "first_seq": saved.last_seq + entries.REVISIONS_AHEAD}
    waiting: list[asyncio.Future[dict[str, Any]]] = []
    try:
        await bus.ask(f"STREAM.CREATE.{STATE}", created, timeout_s=20)
        for stored in entries.read_lines(folder / saved.file.name):
            if (entry := entries.restored(stored)) is not None:
                waiting.append(await bus.post(entry.subject, entry.data, timeout_s=60))
            if len(waiting) >= STORED_AT_ONCE:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
    except BusFault as fault:
        raise BackupError(f"{STATE} was not restored: {fault}; {AGAIN}") from fault


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))

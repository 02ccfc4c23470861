"""Taking of a backup: it only reads, so services and pods go on meanwhile."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from stretto_bus.bus import Bus
from stretto_bus.reading.damage import find_damage
from stretto_bus.reading.stream_snapshot import StreamSnapshot
from stretto_messages.base import counted
from stretto_wire.contract.registry import STATE, STREAM

from ..errors import BackupError
from . import entries
from .manifest import (
    FORMAT,
    TRUST_COPY,
    Manifest,
    SavedFile,
    SavedStream,
    complete_until_s,
    digest_of,
    in_order,
)

SEED = re.compile(r"\bS[OACNUX][A-Z2-7]{56}\b")
"""A private key of NATS."""

UNREADABLE = "some messages are missing from the backup, all others are in it: {}"
"""Text about messages that the server could not read."""

Report = Callable[[str], None]


async def take(
    bus: Bus, folder: Path, streams: Sequence[str], now_s: float, trust: str = "", report: Report = lambda _: None
) -> Manifest:
    """Save ``streams``, the bucket among them, to ``folder``, which must not exist or be empty.

    Every message is read: what cannot be is in the result's ``unreadable``, and all others are in the backup.

    ``trust`` is the public part of the keys: tokens of the operator and the accounts. ``report`` gets a line for each
    stream.

    Raises:
        BackupError: the folder has content, ``trust`` holds a private key, or two streams do not fit together.
        BusFault: the server refused or stopped.
        OSError: the folder cannot be written.
    """
    if SEED.search(trust):
        raise BackupError("trust holds a private key (a seed): give the server's trust.conf, which has none")
    _make_folder(folder)
    saved: list[SavedStream] = []
    moment = entries.Moment([], 0)
    for name in in_order(streams):
        if name == STATE:
            moment = await entries.read_moment(bus)
            part = _save_entries(folder / f"{name}.jsonl", moment)
        else:
            part = await _save_stream(bus, name, folder / f"{name}.snapshot")
        if name == STREAM:
            entries.check_within(moment.entries, part.last_seq)
        saved.append(part)
        report(f"{name}: {counted(part.messages, 'message')} up to {part.last_seq:,}, {part.file.size_bytes:,} bytes")
    damages = [str(damage) for name in streams if (damage := await find_damage(bus, name)) is not None]
    manifest = Manifest(
        format=FORMAT,
        taken_at_s=now_s,
        complete_until_s=complete_until_s(now_s),
        server_version=bus.server_version,
        versions=entries.versions(moment.entries),
        streams=tuple(saved),
        trust=_save_text(folder / TRUST_COPY, trust) if trust else None,
        unreadable=tuple(damages),
    )
    manifest.write(folder)
    return manifest


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty: name a new folder for each backup")
    try:
        folder.chmod(0o700)  # it may have been there before, open to others: it will hold the audit log
    except OSError as error:
        raise BackupError(f"{folder} cannot be closed to other users: {error}; name a new folder") from None


def _save_entries(path: Path, moment: entries.Moment) -> SavedStream:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("xb") as file:
        for stored in moment.entries:
            line = entries.line_of(stored)
            file.write(line)
            digest.update(line)
            size_bytes += len(line)
    first_seq = moment.entries[0].seq if moment.entries else 0
    saved = SavedFile(name=path.name, size_bytes=size_bytes, sha256=digest.hexdigest())
    return SavedStream(stream=STATE, file=saved, messages=len(moment.entries), first_seq=first_seq, last_seq=moment.seq)


async def _save_stream(bus: Bus, name: str, path: Path) -> SavedStream:
    digest, size_bytes = hashlib.sha256(), 0
    snapshot = StreamSnapshot(bus, name)
    with path.open("xb") as file:
        async for chunk in snapshot.chunks():
            file.write(chunk)
            digest.update(chunk)
            size_bytes += len(chunk)
    saved = SavedFile(name=path.name, size_bytes=size_bytes, sha256=digest.hexdigest())
    state = snapshot.state
    return SavedStream(
        stream=name, file=saved, messages=state.messages, first_seq=state.first_seq, last_seq=state.last_seq
    )


def _save_text(path: Path, text: str) -> SavedFile:
    path.write_text(text)
    return digest_of(path)

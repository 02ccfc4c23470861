"""The streams that an installation has had, noted in a file beside them: a store that lacks some of them serves nobody.

A server starts with an empty folder as if nothing had ever run, and with yesterday's copy as if today had not been. So
the file says of each stream when it was made, and a sequence that it has had. Such a sequence is noted only once the
server has surely synced it, so that a loss of power, which may cost the last minutes, is not taken for a wrong store.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.reading.damage import subject_counts
from stretto_messages.base import JOB_PATTERN, counted
from stretto_runtime.spent_names import KEPT, spend
from stretto_wire.contract.registry import STATE, STREAM
from stretto_wire.stores.filesystems import open_store

from .access.keys import sync, write_private
from .errors import ForeignStore, InstallationError

NOT_FOUND = 10059
SUBMITTED = "*.evt.v1.gateway.job-submitted.*"
NAMED = 10
"""Jobs that a text names."""


class KnownStream(BaseModel):
    """A stream: when the server made it, and a sequence that it has had."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    created: str
    last_seq: int


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    streams: dict[str, KnownStream]


@dataclass(frozen=True, slots=True)
class Extent:
    """A stream as the server has it now. ``last_s``: when its last message was stored, seconds since 1970."""

    created: str
    last_seq: int
    last_s: float


@dataclass(frozen=True, slots=True)
class KnownStreams:
    """The note of an installation's streams in ``file``, and the ``places`` that have a folder for each job: folders,
    and URLs of stores.

    ``forget``: the store is taken as it is, and the names of those jobs that it does not know are never given again.
    ``again``: the command that says so.
    """

    file: Path
    places: tuple[Path | str, ...] = ()
    forget: bool = False
    again: str = "stretto up --forget"

    def read(self) -> dict[str, KnownStream]:
        """Return the noted streams; none if nothing was noted. Raises InstallationError: the file cannot be read."""
        try:
            return dict(_Document.model_validate_json(self.file.read_bytes()).streams)
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else "it holds something else"
            raise InstallationError(
                f"{self.file}, which notes what streams there were, cannot be read ({why}): restore it, or "
                "remove it if the store of the bus is the right one"
            ) from None

    async def check(self, bus: Bus, names: Collection[str]) -> None:
        """Compare the streams of ``names`` with the noted ones, before anything is made.

        Raises:
            ForeignStore: the store lacks what was noted, or has no streams although jobs have left files.
            InstallationError: it is to be taken as it is, and which jobs are to be forgotten cannot be listed.
            BusFault: the server refused.
        """
        if self.forget:
            await self._jobs_to_forget()
            return
        known, found = self.read(), await extents(bus, names)
        lacks = lacking(known, found) if found else ["there is no stream"]
        if not lacks:
            return
        jobs, unlisted = await asyncio.to_thread(jobs_in, *self.places)  # of many jobs it takes a while
        if known or jobs:  # a store that was never noted has its past in the files of its jobs alone
            raise ForeignStore(self._refusal(lacks, jobs, unlisted))

    async def settle(self, bus: Bus, names: Collection[str], rest_s: float, now_s: float) -> list[str]:
        """Note the streams as they are now, after they were made; returns the jobs that are forgotten.

        ``rest_s``: messages that are older are surely on the server's disk. Raises BusFault, DamagedNames, OSError,
        InstallationError.
        """
        forgotten = sorted(await unknown_jobs(bus, await self._jobs_to_forget())) if self.forget else []
        await spend(bus, forgotten)
        before = {} if self.forget else self.read()
        found = await extents(bus, names)
        synced = {name: each.last_seq if each.last_s < now_s - rest_s else 0 for name, each in found.items()}
        made = {name: KnownStream(created=each.created, last_seq=0) for name, each in found.items()}
        self._write(_raised({**made, **before}, found, synced))
        return forgotten

    def note(self, found: Mapping[str, Extent]) -> None:
        """Note how far known streams have come; their messages are on the server's disk. Raises OSError."""
        before = self.read()
        after = _raised(before, found, {name: each.last_seq for name, each in found.items()})
        if after != before:
            self._write(after)

    def _write(self, streams: dict[str, KnownStream]) -> None:
        self.file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self.file, _Document(streams=streams).model_dump_json(indent=1) + "\n")
        sync([self.file, self.file.parent])

    async def _jobs_to_forget(self) -> frozenset[str]:
        jobs, unlisted = await asyncio.to_thread(jobs_in, *self.places)
        if unlisted:
            raise InstallationError(
                f"{'; '.join(unlisted)}: the names of forgotten jobs could be given again; mend the store first"
            )
        return jobs

    def _refusal(self, lacks: list[str], jobs: frozenset[str], unlisted: list[str]) -> str:
        left = f"Left of {named(jobs)} are pods or checkpoints. " if jobs else ""
        left += "".join(f"Of other jobs there may be some: {each}. " for each in unlisted)
        return (
            f"the bus lacks what this installation has had: {'; '.join(lacks)}. Its store is empty, damaged, older, or "
            f"another's; nothing serves, and nothing was changed. {left}Put the right store back (the log of "
            "nats-server says whether it could not open one), or restore a backup (`stretto restore FOLDER`, with "
            f"--replace if the store has messages). Or give up what is lacking: `{self.again}` takes the store as it "
            "is; jobs that are not in it are forgotten, their files stay, and their names are never given again"
        )


def jobs_in(*places: Path | str) -> tuple[frozenset[str], list[str]]:
    """Return the jobs that have a folder in one of the ``places``, and why a store cannot be listed.

    A place may be missing; a URL is that of a store.
    """
    found, unlisted = set[str](), list[str]()
    for place in places:
        if isinstance(place, Path):
            with contextlib.suppress(OSError):
                found |= {each.name for each in place.iterdir() if each.is_dir()}
            continue
        try:
            filesystem, path = open_store(place)
            found |= {
                each["name"].rstrip("/").rpartition("/")[2]
                for each in (filesystem.ls(path, detail=True) if filesystem.exists(path) else ())
                if each["type"] == "directory"
            }
        except Exception as error:  # whatever a file system raises
            unlisted.append(f"the store {place} cannot be listed ({type(error).__name__}: {error})")
    return frozenset(name for name in found if re.fullmatch(JOB_PATTERN, name)), unlisted


def named(jobs: Collection[str]) -> str:
    """Name some jobs of many."""
    first = sorted(jobs)[:NAMED]
    more = f" and {len(jobs) - NAMED:,} more" if len(jobs) > NAMED else ""
    return f"{counted(len(jobs), 'job')} ({', '.join(first)}{more})"


def lacking(known: Mapping[str, KnownStream], found: Mapping[str, Extent]) -> list[str]:
    """Return what the streams ``found`` lack of the known ones, in words."""
    lacks: list[str] = []
    for name, then in known.items():
        now = found.get(name)
        if now is None:
            lacks.append(f"the stream {name} is missing")
        elif now.created != then.created:
            lacks.append(f"the stream {name} was made at {_time(now.created)}, that of before at {_time(then.created)}")
        elif now.last_seq < then.last_seq:
            lacks.append(f"the stream {name} ends with message {now.last_seq:,}, it has had {then.last_seq:,}")
    return lacks


async def extents(bus: Bus, names: Iterable[str]) -> dict[str, Extent]:
    """Return the extents of the streams that exist. Raises BusFault."""
    found: dict[str, Extent] = {}
    for name in names:
        if (info := await _info(bus, name)) is not None:
            state = info["state"]
            last_s = datetime.fromisoformat(state["last_ts"]).timestamp() if state["last_seq"] else 0.0
            found[name] = Extent(str(info["created"]), int(state["last_seq"]), last_s)
    return found


async def unknown_jobs(bus: Bus, jobs: Iterable[str]) -> set[str]:
    """Return the jobs that neither the log nor the bucket knows. Raises BusFault."""
    known = {subject.rpartition(".")[2] for subject in await subject_counts(bus, STREAM, SUBMITTED)}
    known |= {subject.removeprefix(KEPT) for subject in await subject_counts(bus, STATE, f"{KEPT}*")}
    return {*jobs} - known


def put_on_disk(store: Path) -> None:
    """Put the files of a server that has ended on the disk. Raises OSError."""
    sync(path for path in store.rglob("*") if path.is_file())


async def _info(bus: Bus, name: str) -> dict[str, Any] | None:
    try:
        return await bus.ask(f"STREAM.INFO.{name}")
    except BusFault as fault:
        if fault.code != NOT_FOUND:
            raise
        return None


def _raised(
    known: Mapping[str, KnownStream], found: Mapping[str, Extent], synced: Mapping[str, int]
) -> dict[str, KnownStream]:
    """Return the known streams with the sequences that were synced since."""
    return {
        name: then.model_copy(update={"last_seq": max(then.last_seq, synced[name])})
        if name in found and found[name].created == then.created
        else then
        for name, then in known.items()
    }


def _time(created: str) -> str:
    return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M:%S} UTC"

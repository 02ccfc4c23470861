"""A store that is empty, older or another's serves nobody until somebody says so."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from flipped_bits import blocks, flip
from installation_backups import NAMES
from runtime_counting import submission
from stretto_bus import Client
from stretto_installation.errors import ForeignStore, InstallationError, NotRunning
from stretto_installation.known_streams import KnownStreams, extents
from stretto_installation.one_machine import supervisor
from stretto_installation.one_machine.programs import StartOptions
from stretto_installation.one_machine.state import describe, read_state
from stretto_installation.one_machine.supervisor import Installation
from stretto_installation.provision import make
from stretto_installation.server import STORE, EmbeddedServer
from stretto_installation.settings import StreamsSettings
from stretto_runtime.spent_names import SpentNames, spent_shards
from stretto_wire.contract.registry import STREAM
from stretto_wire.stores.filesystems import open_store

SETTINGS = StreamsSettings()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[EmbeddedServer, Client]]:
    server = EmbeddedServer(folder, secured=False)
    await server.start()
    client = await Client.connect(server.url)
    try:
        yield server, client
    finally:
        await client.close()
        server.stop()


@pytest.fixture
async def known(tmp_path: Path) -> KnownStreams:
    """The streams of ``tmp_path/nats``, with the jobs a and b; ``earlier`` is a copy from before b."""
    file = tmp_path / "streams.json"
    async with serving(tmp_path / "nats") as (server, client):
        await make(server.url, server.login(), SETTINGS, KnownStreams(file))
        await client.publish(submission("a"))
    shutil.copytree(tmp_path / "nats", tmp_path / "earlier")
    async with serving(tmp_path / "nats") as (_, client):
        await client.publish(submission("b"))
        KnownStreams(file).note(await extents(client.bus, NAMES))
    for job in ("a", "b", ".logs"):
        (tmp_path / "checkpoints" / job).mkdir(parents=True)
    return KnownStreams(file, (tmp_path / "checkpoints", tmp_path / "no-pods"))


def wiped(folder: Path) -> None:
    shutil.rmtree(folder / "nats")


def of_yesterday(folder: Path) -> None:
    shutil.rmtree(folder / "nats")
    shutil.move(folder / "earlier", folder / "nats")


def without_the_log(folder: Path) -> None:
    (stream,) = (folder / "nats" / STORE).rglob(STREAM)
    shutil.rmtree(stream)


def without_what_tells_the_server_of_it(folder: Path) -> None:
    (stream,) = (folder / "nats" / STORE).rglob(STREAM)
    (stream / "meta.inf").write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "lacking", "lost"),
    [
        (wiped, "there is no stream", ["a", "b"]),
        (of_yesterday, "the stream STRETTO ends with message 1, it has had 2", ["b"]),
        (without_the_log, "the stream STRETTO is missing", ["a", "b"]),
        (without_what_tells_the_server_of_it, "the stream STRETTO is missing", []),  # it finds the messages
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_a_store_that_lacks_streams_is_refused_unchanged_and_taken_by_request_alone(
    known: KnownStreams, tmp_path: Path, change: Callable[[Path], None], lacking: str, lost: list[str]
) -> None:
    """Goal: nothing is made, so that no data that could be repaired goes; a name whose folder lies there, and which the
    store does not know, is never given again."""
    change(tmp_path)
    async with serving(tmp_path / "nats") as (server, client):
        before = await extents(client.bus, NAMES)
        with pytest.raises(ForeignStore, match=rf"{lacking}.*2 jobs \(a, b\).*stretto restore.*stretto up --forget"):
            await make(server.url, server.login(), SETTINGS, known)
        assert await extents(client.bus, NAMES) == before
        deliberate = KnownStreams(known.file, known.places, forget=True)
        assert (await make(server.url, server.login(), SETTINGS, deliberate)).forgotten == lost
        spent = SpentNames(await spent_shards(client.bus))
        assert [job for job in ("a", "b") if job in spent] == lost
        assert (await make(server.url, server.login(), SETTINGS, known)).forgotten == []


async def test_jobs_in_an_object_store_are_named_and_forgotten_and_one_that_cannot_be_listed_is_told(
    known: KnownStreams, tmp_path: Path
) -> None:
    """Method: fsspec's store in memory, in which a folder is there only while it has a file, as in object stores."""
    store, _ = open_store("memory://store")
    for name in ("c/c-000001/manifest.json", "c/c-000001/ps-0", "d/d-000001/manifest.json", ".logs/c/ps-0.log", "file"):
        store.pipe_file(f"/store/{name}", b"")
    shutil.rmtree(tmp_path / "nats")
    url, unknown, none = "memory://store", "nothing-has-this://store", tmp_path / "none.json"
    async with serving(tmp_path / "nats") as (server, client):
        for file, place, told in (
            (known.file, url, r"Left of 2 jobs \(c, d\)"),
            (none, url, r"Left of 2 jobs \(c, d\)"),
            (
                known.file,
                unknown,
                r"Of other jobs there may be some: the store nothing-has-this://store cannot be listed",
            ),
        ):
            with pytest.raises(ForeignStore, match=told):
                await make(server.url, server.login(), SETTINGS, KnownStreams(file, (place,)))
        with pytest.raises(InstallationError, match=r"cannot be listed .* could be given again; mend the store first"):
            await make(server.url, server.login(), SETTINGS, KnownStreams(known.file, (unknown,), forget=True))
        assert await extents(client.bus, NAMES) == {}
        assert (
            await make(server.url, server.login(), SETTINGS, KnownStreams(none, (url,), forget=True))
        ).forgotten == ["c", "d"]
        spent = SpentNames(await spent_shards(client.bus))
        assert all(job in spent for job in ("c", "d"))
    async with serving(tmp_path / "new") as (server, _):
        assert (
            await make(server.url, server.login(), SETTINGS, KnownStreams(tmp_path / "new.json", (unknown,)))
        ).forgotten == []


async def test_the_streams_of_another_installation_are_refused(known: KnownStreams, tmp_path: Path) -> None:
    async with serving(tmp_path / "other") as (server, client):
        await make(server.url, server.login(), SETTINGS)
        for job in ("c", "d", "e"):
            await client.publish(submission(job))
        with pytest.raises(ForeignStore, match=r"the stream STRETTO was made at .*, that of before at "):
            await make(server.url, server.login(), SETTINGS, known)


async def test_a_store_that_was_never_noted_is_refused_empty_beside_jobs_and_noted_otherwise(
    known: KnownStreams, tmp_path: Path
) -> None:
    """Case: an installation of a former version. A note that cannot be read is none."""
    known.file.write_text("{")
    async with serving(tmp_path / "nats") as (server, _):
        with pytest.raises(InstallationError, match=r"cannot be read .*, or remove it if the store"):
            await make(server.url, server.login(), SETTINGS, known)
    known.file.unlink()
    async with serving(tmp_path / "empty") as (server, _):
        with pytest.raises(ForeignStore, match="there is no stream"):
            await make(server.url, server.login(), SETTINGS, known)
    async with serving(tmp_path / "nats") as (server, _):
        await make(server.url, server.login(), SETTINGS, known)
    assert known.read().keys() == {*NAMES}


async def test_what_a_loss_of_power_may_take_is_not_noted(known: KnownStreams, tmp_path: Path) -> None:
    async with serving(tmp_path / "nats") as (server, client):
        known.file.unlink()
        await make(server.url, server.login(), SETTINGS, known)
        assert known.read()[STREAM].last_seq == 0, "the messages are of this minute"
        await known.settle(client.bus, NAMES, SETTINGS.rest_s, time.time() + SETTINGS.rest_s)
        assert known.read()[STREAM].last_seq == 2


@pytest.mark.parametrize(("interval", "rest_s"), [("", 300), ("always", 300), ("500ms", 300), ("9m", 1080)])
def test_what_is_noted_is_older_than_two_syncs_of_the_server(interval: str, rest_s: float) -> None:
    assert StreamsSettings(sync_interval=interval).rest_s == rest_s


async def test_an_installation_tells_at_its_start_of_damage_and_with_its_store_gone_starts_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SERVICES", ())
    folder = tmp_path / "s"
    first = Installation(StartOptions(folder), {})
    await first.up()
    client = await Client.connect(*first.operator())
    await client.publish(submission("a"))
    await client.close()
    await first.down()
    flip(blocks(folder / "nats", STREAM)[-1], b"job-submitted.a")
    monkeypatch.setattr(supervisor, "SERVICES", ("gateway",))
    monkeypatch.setattr(supervisor, "READ_S", supervisor.READY_S / 2)  # a slow machine looks for long
    damaged = Installation(StartOptions(folder), {})
    try:
        await damaged.up()
        (told,) = [warning for warning in describe(folder)["warnings"] if warning.startswith("gateway: ")]
        assert "1 message of the stream STRETTO cannot be read; sequence 1: everything else goes on" in told
    finally:
        await damaged.down()
    shutil.rmtree(folder / "nats" / STORE)
    monkeypatch.setattr(supervisor, "SERVICES", ("planner",))
    again = Installation(StartOptions(folder), {})
    try:
        with pytest.raises(ForeignStore, match="there is no stream"):
            await again.up()
        assert again.children.keys() == {"nats", "redis"}
    finally:
        await again.down()
    with pytest.raises(NotRunning, match=r"the last start was refused: .*there is no stream"):
        read_state(folder)
    (folder / "pods" / "a").mkdir(parents=True)
    monkeypatch.setattr(supervisor, "SERVICES", ())
    deliberate = Installation(StartOptions(folder, forget=True), {})
    try:
        await deliberate.up()
        assert any("1 job (a)" in warning for warning in read_state(folder)["warnings"])
    finally:
        await deliberate.down()

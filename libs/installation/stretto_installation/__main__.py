"""``python -m stretto_installation``: prepare an installation on one's own servers.

Without a command it is ``provision``: make the streams, and update existing ones to the present configuration.
``STRETTO_NATS_URL`` and ``_CREDENTIALS`` (the operator's) say where, ``STRETTO_STREAMS_REPLICAS``, ``_SYNC_INTERVAL``,
``_MAX_BYTES`` and ``_EXTERNAL_CREDENTIALS`` how. ``keys`` makes everybody's keys. Both are harmless to repeat.
``backup`` saves the streams while services run, ``restore`` puts them back (``stretto_installation.backup``).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault, Fault
from stretto_runtime.process.health_warnings import RENEWED_BEFORE_DAYS
from stretto_wire.contract.registry import OPERATOR, USERS

from .access.cache_user import REDIS, make_cache_user
from .access.keys import EXTERNAL, SERVER, TRUST_FILE, Keys
from .access.permissions import EXTERNAL_STREAM
from .backup import EXPIRED, UNREADABLE, read_back, restore, take
from .errors import BackupError, InstallationError
from .known_streams import NOT_FOUND, KnownStreams, named
from .provision import keeper_files, make, streams
from .server import scratch
from .settings import StreamsSettings

PURPOSE = "Prepare an installation on your own servers, before its services start."
LEGEND = {
    "root": "signs for all others; keep it where nothing runs, `keys` needs it again",
    "server": "for nats-server; `include` trust.conf in its configuration",
    "actuator": "for the service and nobody else; pods.seed is STRETTO_ACTUATOR_SIGNING_KEY_FILE",
    "operator": "for making the streams; may do everything on the bus",
    REDIS: "for redis-server: --aclfile users.acl",
    "external-keeper": "for making the streams: STRETTO_STREAMS_EXTERNAL_CREDENTIALS names this folder, if events are "
    "to be kept for tools outside",
}
"""Purpose of the folders that do not belong to a service"""


REVOKED = """\
revoked: {names}. These steps remain, in this order:
    1. give {files} to those that go on (on Kubernetes: the Secret <prefix>-<name> of each)
    2. give {trust} to every nats-server (the Secret that holds it) and reload it:
       `nats-server --signal reload`, or SIGHUP to the process; one that `stretto up` runs: `stretto down`, `stretto up`
Until a server has reloaded, it accepts the old credentials; then it closes their connections."""


def make_keys(
    folder: Path, external: Sequence[str], hosts: Sequence[str] = (), revoked: Sequence[str] = (), redis: str = ""
) -> list[str]:
    """Make the missing keys; returns a report of the new files and of the steps that remain.

    ``hosts`` are names and addresses for the server's certificate, if it gets one; ``redis`` is the cache's host, if
    its users are made here.
    """
    made: dict[str, list[str]] = {}
    keys = Keys(folder, time.time(), external, hosts, revoked)
    of_cache = make_cache_user(folder, redis, lambda: secrets.token_urlsafe(32)) if redis else []
    for path in (*keys.made, *of_cache):
        made.setdefault(path.parent.name, []).append(path.name)
    lines: list[str] = [*keys.notices] if made else [f"{folder} is complete", *keys.notices]
    for owner, names in made.items():
        meaning = LEGEND.get(owner, f"for {'a tool outside' if owner not in USERS else 'the service'} and nobody else")
        lines += [f"{folder / owner}: {meaning}", f"    {', '.join(names)}"]
    if (end_s := keys.certificate_ends_s) is not None:
        again = f"repeat this with --tls in the {RENEWED_BEFORE_DAYS} days before, and reload nats-server"
        lines.append(f"the server's certificate ends on {datetime.fromtimestamp(end_s, UTC):%Y-%m-%d}: {again}")
    if revoked:
        files = ", ".join(str(keys.credentials(name)) for name in revoked)
        lines.append(REVOKED.format(names=", ".join(revoked), files=files, trust=folder / SERVER / TRUST_FILE))
    return lines


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


async def save(folder: Path, trust: Path | None, settings: StreamsSettings) -> None:
    """Take a backup. Raises Fault, BackupError, or OSError: the folder or ``trust`` cannot be used.

    A backup that lacks what cannot be read is whole otherwise, and a BackupError says what it lacks.
    """
    public = await asyncio.to_thread(trust.read_text) if trust is not None else ""
    bus = await Bus.connect(settings.nats_url, settings.login(OPERATOR), "backup")
    try:
        manifest = await take(bus, folder, [config["name"] for config in streams()], time.time(), public, _say)
    finally:
        await bus.close()
    _check_readable(manifest.unreadable)


async def verify(folder: Path, settings: StreamsSettings) -> None:
    """Read a backup back, in a server that is removed afterwards. Raises BackupError: some of it cannot be read."""
    async with scratch(folder) as bus:
        _check_readable(await read_back(bus, folder, streams(settings), time.time()))


def _check_readable(unreadable: Sequence[str]) -> None:
    if unreadable:
        raise BackupError(UNREADABLE.format("; ".join(unreadable)))


def known_streams(given: argparse.Namespace, *, forget: bool) -> KnownStreams | None:
    """Return what is known of the streams, if the arguments name a file for it."""
    if given.known is None:
        return None
    jobs = given.jobs if given.jobs is None or "://" in given.jobs else Path(given.jobs)
    return KnownStreams(given.known, () if jobs is None else (jobs,), forget, "provision --forget")


async def put_back(folder: Path, replace: bool, settings: StreamsSettings, known: KnownStreams | None = None) -> None:
    """Restore a backup under the configuration of ``settings``; from then on its streams are the ``known`` ones.

    Raises Fault, BackupError, or OSError: a file cannot be read.
    """
    configs = streams(settings)
    bus = await Bus.connect(settings.nats_url, settings.login(OPERATOR), "restore")
    try:
        restored = await restore(bus, folder, configs, time.time(), replace, _say)
    finally:
        await bus.close()
    files = [] if settings.external_credentials is None else keeper_files(settings.external_credentials)
    for file in files:  # a tool's mirror of the former log has other messages
        login = dataclasses.replace(settings.login(OPERATOR), credentials=file)
        keeper = await Bus.connect(settings.nats_url, login, "restore")
        try:
            await keeper.ask(f"STREAM.DELETE.{EXTERNAL_STREAM}", timeout_s=20)
        except BusFault as fault:
            if fault.code != NOT_FOUND:
                raise
        finally:
            await keeper.close()
    await remade(settings, known)
    if restored.expired:
        _say(EXPIRED)


async def remade(settings: StreamsSettings, known: KnownStreams | None) -> None:
    """Make the streams; say what a loss of power costs, and which jobs are forgotten. Raises as ``make`` does."""
    made = await make(settings.nats_url, settings.login(OPERATOR), settings, known)
    _say(f"power: {made.power}")
    if made.forgotten:
        _say(f"forgotten, their names never to be given again: {named(made.forgotten)}")


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m stretto_installation", description=PURPOSE)
    commands = main.add_subparsers(dest="command")
    making = commands.add_parser("provision", help="make the streams; the environment says where and how "
                                 "(STRETTO_NATS_*, STRETTO_STREAMS_*)")  # fmt: skip
    making.add_argument("--forget", action="store_true", help="take a store that lacks known streams as it is, and "
                        "never give the names of jobs again that are not in it")  # fmt: skip
    keys = commands.add_parser("keys", help="make the keys of an installation: of the server, services, tools outside")
    keys.add_argument("folder", type=Path, help="holds a folder for each who is to get some; what is there stays")
    keys.add_argument("--external", action="append", metavar="NAME", default=[],
                      help="of a tool outside, which may read events; repeatable (default: external)")  # fmt: skip
    keys.add_argument("--revoke", action="append", metavar="NAME", default=[],
                      help="of a service or a tool outside: other credentials for it, and the present ones are let in "
                      "no more; repeatable")  # fmt: skip
    keys.add_argument("--tls", action="append", metavar="HOST", default=[], help="also an authority of one's own and a "
                      "certificate of the server, for this name or address; repeatable")  # fmt: skip
    keys.add_argument("--redis", metavar="HOST", default="", help="also the users of a Redis of one's own, which "
                      "services reach by this name")  # fmt: skip
    taking = commands.add_parser("backup", help="save all streams at one moment while services run; the environment "
                                 "says where (STRETTO_NATS_*)")  # fmt: skip
    taking.add_argument("folder", type=Path, help="new folder for this backup")
    taking.add_argument("--trust", type=Path, metavar="FILE", help="also keep the public part of the keys, the "
                        "server's trust.conf")  # fmt: skip
    taking.add_argument("--verify", action="store_true", help="take none, but read back the one in the folder, in a "
                        "server that is removed afterwards")  # fmt: skip
    back = commands.add_parser("restore", help="make the streams from a backup, in a server without streams; no "
                               "service and no pod may run")  # fmt: skip
    back.add_argument("folder", type=Path, help="folder of a backup")
    back.add_argument("--replace", action="store_true", help="give up the streams that the server has")
    for each in (making, back):
        each.add_argument("--known", type=Path, metavar="FILE", help="notes the streams, so that a store that lacks "
                          "some of them is refused; keep it outside the store")  # fmt: skip
        each.add_argument("--jobs", metavar="PLACE", help="folder or URL (with stretto-wire[stores]) of a store that "
                          "has a folder of checkpoints for each job; the names of those that the streams know no more "
                          "are not given again")  # fmt: skip
    return main


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    try:
        if given.command == "keys":
            external = given.external or ([] if given.revoke else [EXTERNAL])
            lines = make_keys(given.folder, external, given.tls, given.revoke, given.redis)
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            return
        settings = StreamsSettings.read()
        if given.command == "backup":
            asyncio.run(verify(given.folder, settings) if given.verify else save(given.folder, given.trust, settings))
        elif given.command == "restore":
            asyncio.run(put_back(given.folder, given.replace, settings, known_streams(given, forget=True)))
        else:
            known = known_streams(given, forget=given.forget) if given.command else None
            asyncio.run(remade(settings, known))
    except (Fault, InstallationError, OSError) as fault:
        raise SystemExit(f"{given.command or 'provision'}: {fault}") from None


if __name__ == "__main__":
    main()

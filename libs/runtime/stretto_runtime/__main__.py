"""``python -m stretto_runtime``: what an installation on servers of one's own needs before its services start.

Without a command, ``provision``: make the streams, and bring those that are there to the present configuration.
``STRETTO_NATS_URL`` and ``_CREDENTIALS`` (the operator's) say where, ``STRETTO_STREAMS_REPLICAS``, ``_SYNC_INTERVAL``,
``_MAX_BYTES`` and ``_EXTERNAL_CREDENTIALS`` how. ``keys``: make everybody's keys. Both are harmless to repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stretto_runtime.faults import RuntimeFault
from stretto_runtime.keys import EXTERNAL, Keys
from stretto_runtime.permissions import OPERATOR
from stretto_runtime.provision import make
from stretto_runtime.settings import StreamsSettings

PURPOSE = "What an installation on servers of one's own needs before its services start."
LEGEND = {
    "root": "vouches for all others; keep it where nothing runs, `keys` needs it again",
    "server": "for nats-server; `include` trust.conf in its configuration",
    "actuator": "for the service and nobody else; pods.seed is STRETTO_ACTUATOR_SIGNING_KEY_FILE",
    "operator": "for who makes the streams; may do everything on the bus",
    "external-keeper": "for who makes the streams: STRETTO_STREAMS_EXTERNAL_CREDENTIALS keeps events for those outside",
}
"""what belongs where, of folders that are not simply a service's"""


def make_keys(folder: Path, external: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """What was made for whom; ``hosts``: names and addresses that the server's certificate is for, if any."""
    made: dict[str, list[str]] = {}
    for path in Keys(folder, time.time(), external, hosts).made:
        made.setdefault(path.parent.name, []).append(path.name)
    lines: list[str] = []
    for owner, names in made.items():
        meaning = LEGEND.get(owner, f"for {'a tool outside' if owner in external else 'the service'} and nobody else")
        lines += [f"{folder / owner}: {meaning}", f"    {', '.join(names)}"]
    return lines


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m stretto_runtime", description=PURPOSE)
    commands = main.add_subparsers(dest="command")
    commands.add_parser("provision", help="make the streams; the environment says where and how (STRETTO_NATS_*, "
                        "STRETTO_STREAMS_*)")  # fmt: skip
    keys = commands.add_parser("keys", help="make the keys of an installation: of the server, services, tools outside")
    keys.add_argument("folder", type=Path, help="holds a folder for each who is to get some; what is there stays")
    keys.add_argument("--external", action="append", metavar="NAME", default=[],
                      help="of a tool outside, which may read events; repeatable (default: external)")  # fmt: skip
    keys.add_argument("--tls", action="append", metavar="HOST", default=[], help="also an authority of one's own and a "
                      "certificate of the server, for this name or address; repeatable")  # fmt: skip
    return main


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    try:
        if given.command == "keys":
            lines = make_keys(given.folder, given.external or [EXTERNAL], given.tls)
            sys.stdout.write("".join(f"{line}\n" for line in lines or [f"{given.folder} is complete"]))
        else:
            settings = StreamsSettings.read()
            asyncio.run(make(settings.nats_url, settings.login(OPERATOR), settings))
    except (RuntimeFault, OSError) as fault:
        raise SystemExit(f"{given.command or 'provision'}: {fault}") from None


if __name__ == "__main__":
    main()

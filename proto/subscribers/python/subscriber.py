"""Follows the events of Stretto: prints each as one line of JSON, from any sequence or time, surely or in passing.

    python subscriber.py --server tls://bus.example:4222 --credentials external/bus.creds --ca external/ca.crt
    python subscriber.py … --from-sequence 1200
    python subscriber.py … --since 2026-11-22T10:00:00Z --until-quiet 2
    python subscriber.py … --durable my-tool          # goes on where it was, also after a crash

Needs nats-py and nkeys, nothing of Stretto.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path

import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

STREAM = "EVENTS"
EVERYTHING = "evt.v1.>"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="nats:// or tls:// and host:port")
    parser.add_argument("--credentials", required=True, help="the file that the installation gave you")
    parser.add_argument("--ca", help="who vouches for the server; default: whom the system believes")
    parser.add_argument("--inbox", default="_INBOX.external", help="_INBOX. and the name in the credentials")
    parser.add_argument("--subject", default=EVERYTHING, help="such as evt.v1.arbiter.plan-decided.* (default: all)")
    parser.add_argument("--durable", metavar="NAME", help="let the server remember where you are, under this name")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--from-sequence", type=int, metavar="N")
    start.add_argument("--since", type=datetime.fromisoformat, metavar="TIME", help="as in 2026-11-22T10:00:00+00:00")
    start.add_argument("--new", action="store_true", help="only what comes from now on")
    parser.add_argument("--until-quiet", type=float, metavar="S", help="end when nothing came for so long")
    return parser.parse_args()


def begin(given: argparse.Namespace) -> ConsumerConfig:
    """Where to begin. Without a name, nothing has to be acknowledged."""
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL)
    if given.from_sequence is not None:
        config = config.evolve(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=given.from_sequence)
    elif given.since is not None:
        since = given.since if given.since.tzinfo else given.since.replace(tzinfo=UTC)
        config = config.evolve(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=since)
    elif given.new:
        config = config.evolve(deliver_policy=DeliverPolicy.NEW)
    return config


def show(message: Msg) -> None:
    """One event. Its id is the same however often it comes: who must not do a thing twice remembers it."""
    headers = message.headers or {}
    event = {
        "sequence": message.metadata.sequence.stream,
        "id": headers.get("ce-id"),
        "type": headers.get("ce-type"),
        "time": headers.get("ce-time"),
        "subject": message.subject,
        "data": json.loads(message.data),
    }
    print(json.dumps(event), flush=True)


async def main() -> None:
    given = arguments()
    connection = await nats.connect(
        given.server,
        user_credentials=str(Path(given.credentials)),
        tls=ssl.create_default_context(cafile=given.ca) if given.server.startswith("tls:") else None,
        inbox_prefix=given.inbox.encode(),
    )
    try:
        reader = await connection.jetstream().pull_subscribe(
            given.subject, durable=given.durable, stream=STREAM, config=begin(given)
        )
        while True:
            try:
                for message in await reader.fetch(100, timeout=given.until_quiet or 30):
                    show(message)
                    await message.ack()  # only now: what was not acknowledged comes again
            except TimeoutError:
                if given.until_quiet is not None:
                    return
    finally:
        if connection.is_connected:
            await connection.flush()
        await connection.close()  # no drain(): it would wait 30 s for status messages that fetch() has thrown away


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None

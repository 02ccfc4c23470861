"""``python -m stretto_runtime``: make the streams, and bring those that are there to the present configuration.

For a server or a cluster of one's own; harmless to repeat. ``STRETTO_NATS_URL``, ``_USER`` (operator) and ``_PASSWORD``
say where, ``STRETTO_STREAMS_REPLICAS``, ``_SYNC_INTERVAL`` and ``_MAX_BYTES`` how.
"""

from __future__ import annotations

import asyncio

from stretto_runtime.bus import Bus
from stretto_runtime.faults import RuntimeFault
from stretto_runtime.provision import provision
from stretto_runtime.settings import StreamsSettings


async def make(settings: StreamsSettings) -> None:
    """Raises BusFault: the server refused."""
    bus = await Bus.connect(settings.nats_url, settings.nats_user or "operator", settings.nats_password, "provision")
    try:
        await provision(bus, settings.replicas, settings.max_bytes, settings.sync_interval)
    finally:
        await bus.close()


if __name__ == "__main__":
    try:
        asyncio.run(make(StreamsSettings.read()))
    except RuntimeFault as fault:
        raise SystemExit(f"provision: {fault}") from None

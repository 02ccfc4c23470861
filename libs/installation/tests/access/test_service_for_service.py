"""No service asks in another's name, although the server lets consumers deliver anywhere.

A service may make consumers of the streams that it reads, and say where they deliver what is stored: the server checks
nobody's right to that subject (nats-server issue 8274). Every service here stores a forged request as a dead letter and
names every subject of the installation as the place to deliver it to, pushed and pulled.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import nats.aio.msg
import pytest
from runtime_live import eventually
from stretto_bus import Client
from stretto_bus.connection import Connection
from stretto_bus.faults import BusFault
from stretto_drills.chaos.hostile import replies
from stretto_installation.access.permissions import pod_rights
from stretto_installation.server import EmbeddedServer
from stretto_wire.contract.inboxes import inbox_of, is_inbox_of_caller
from stretto_wire.contract.registry import DEAD_LETTERS, SERVICES

from tests.live_bus import pod_file

JOB, VICTIM, POD = "job-a", "job-b", "worker-0"
FORGED = b'{"job":"job-b","forged":true}'


def targets() -> list[str]:
    """Every subject of the installation that a message can be delivered to."""
    return [to for to in replies(JOB, VICTIM) if to.isascii() and to.isprintable() and len(to) < 100 and "*" not in to]


async def deliver(service: Client, number: int, to: str) -> None:
    """Have the dead letters delivered to ``to``: pushed there, and as the answer to a pull that names it."""
    for kind, config in (("push", {"deliver_subject": to, "ack_policy": "none"}), ("pull", {"ack_policy": "explicit"})):
        name = f"c{number}-{kind}"
        asked = {"name": name, "deliver_policy": "all", "filter_subject": f"dlq.{VICTIM}", **config}
        body = {"stream_name": DEAD_LETTERS, "config": asked, "action": "create"}
        with contextlib.suppress(BusFault):  # the server refuses some places itself
            await service.bus.ask(f"CONSUMER.CREATE.{DEAD_LETTERS}.{name}.dlq.{VICTIM}", body)
    service.bus.connection.put(f"$JS.API.CONSUMER.MSG.NEXT.{DEAD_LETTERS}.c{number}-pull", b'{"batch":9}', to)


@pytest.mark.parametrize("service", SERVICES)
async def test_no_service_reaches_anybody_in_anothers_name(
    service: str, server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    assert server.keys is not None
    file, told = pod_file(server.keys, tmp_path / "pod.creds", VICTIM, POD, 600.0), list[tuple[str, str]]()
    pod = Connection()
    await pod.connect(server.url, user_credentials=str(file))

    async def hears(msg: nats.aio.msg.Msg) -> None:
        told.append((msg.subject, msg.reply))

    for pattern in pod_rights(VICTIM, POD).subscribe:
        await pod.subscribe(pattern, cb=hears)
    await pod.flush()
    reached: list[tuple[str, str]] = []
    for every in SERVICES:  # what they hear stands for every partition of theirs
        await client.bus.subscribe(f"rpc.v1.{every}.>", lambda msg: reached.append((msg.subject, msg.reply)))
    await client.bus.flush()
    asking = await Client.connect(server.url, server.login(service))
    await asking.bus.store(f"dlq.{VICTIM}", FORGED)
    named = targets()
    for number, to in enumerate(named):
        await deliver(asking, number, to)
    last, delivered = f"{inbox_of('operator')}.last.to.1", list[str]()
    await client.bus.subscribe(last, lambda msg: delivered.append(msg.reply.split(".")[3]))
    await client.bus.flush()
    await deliver(asking, len(named), last)
    await asking.bus.flush()
    await eventually(lambda: reached and told and {each.partition("-")[2] for each in delivered} == {"push", "pull"})
    assert not [each for each in reached if is_inbox_of_caller(each[1])]
    assert {subject for subject, reply in told if reply} == {f"dlq.{VICTIM}"}  # pods drop what is not their subject
    await asking.close()
    await pod.close()

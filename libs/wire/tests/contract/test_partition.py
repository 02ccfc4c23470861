"""Clients and the server agree which partition a job is in: else a request would find nobody."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
import stretto_wire as wire
from stretto_messages.dispatcher import NextShard

MAPPED = "rpc.v1.{{wildcard(1)}}.{{wildcard(2)}}.{{partition(%d,3)}}.{{wildcard(3)}}"  # braces: no format string
CONFIG = """
host: 127.0.0.1
port: -1
ports_file_dir: "%s"
mappings = { "rpc.v1.*.*.*": "%s" }
"""


@pytest.fixture
def server_url(tmp_path: Path) -> Iterator[str]:
    config = tmp_path / "server.conf"
    config.write_text(CONFIG % (tmp_path, MAPPED % wire.PARTITIONS))
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen([Path(sys.executable).parent / "nats-server", "-c", config], stdout=log, stderr=log)
    try:
        yield _address(tmp_path)
    finally:
        server.terminate()
        server.wait(60)


def _address(folder: Path) -> str:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for ports in folder.glob("*.ports"):
            if text := ports.read_text():
                return json.loads(text)["nats"][0]
        time.sleep(0.02)
    raise AssertionError((folder / "log").read_text())


async def test_partition_of_is_what_the_server_computes(server_url: str) -> None:
    jobs = [f"job-{number}" for number in range(98)] + ["a", "z" * 63]
    client = await nats.connect(server_url)
    seen: dict[str, int] = {}
    try:
        subscription = await client.subscribe("rpc.v1.dispatcher.next-shard.*.*")
        for job in jobs:
            await client.publish(wire.subject_of(NextShard(job=job, request_id="r", pod="worker-0")))
        await client.flush()
        async with asyncio.timeout(60):
            while len(seen) < len(jobs):
                subject = (await subscription.next_msg(timeout=60)).subject
                assert wire.channel_at(subject).message is NextShard
                *_, partition, job = subject.split(".")
                seen[job] = int(partition)
    finally:
        await client.close()
    assert seen == {job: wire.partition_of(job) for job in jobs}
    assert set(seen.values()) == set(range(wire.PARTITIONS))  # and a hundred jobs reach all of them

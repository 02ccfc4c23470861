"""A job lives longer than its events are kept; a gateway that starts anew knows it all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import stretto_wire as w
from stretto_wire.examples import EXAMPLES

from .conftest import Running


def document(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"entry": "m:M"},
        "dataset": {"growing": True, "partitions": [{"name": "a", "samples": 100}]},
    }


def age_out(gateway: Running) -> None:
    """All that the stream has is older than it keeps."""

    async def purge() -> None:
        client = await gateway.operator()
        try:
            last = (await client.bus.ask(f"STREAM.INFO.{w.STREAM}"))["state"]["last_seq"]
            await client.bus.ask(f"STREAM.PURGE.{w.STREAM}", {"seq": last + 1})
        finally:
            await client.close()

    asyncio.run(purge())


def decide(gateway: Running, job: str, version: int) -> None:
    async def publish() -> None:
        client = await gateway.operator()
        try:
            example = EXAMPLES[w.PlanDecided]
            await client.publish(example.model_copy(update={"job": job, "version": version}))
        finally:
            await client.close()

    asyncio.run(publish())


def test_a_job_older_than_its_events_is_known_to_a_gateway_that_starts(own_gateway: Running) -> None:
    with own_gateway.http() as http:
        for name in ("old", "over"):
            assert http.post("/jobs", json=document(name)).status_code == 201
        http.post("/jobs/old/data", json={"partitions": [{"name": "b", "samples": 50}]})
        assert http.delete("/jobs/over").status_code == 202
    for version in (1, 2):
        decide(own_gateway, "old", version)
    own_gateway.restart()  # what it has read is kept as soon as it has caught up
    with own_gateway.http() as http:
        before = http.get("/jobs/old").json()
        assert before["plan_version"] == 2
        http.post("/jobs", json=document("young"))  # something is read after that
    age_out(own_gateway)
    own_gateway.restart()
    with own_gateway.http() as http:
        view = http.get("/jobs/old").json()
        for known in ("spec", "submitted_at_s", "trace_id", "plan", "plan_version", "data"):
            assert view[known] == before[known], known
        assert http.get("/jobs/over").status_code == 404, "what is over is not kept"
        assert http.post("/jobs", json=document("old")).status_code == 200, "it is that job"
        assert http.post("/jobs", json=document("old") | {"priority": 2.0}).status_code == 409
        assert http.delete("/jobs/old").json()["status"] == "cancelled"

"""Bounds of what submitters within their team's quota can fill: a job's size, a team's bytes, the streams' sizes."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from stretto_bus.faults import BusFault
from stretto_gateway.access.buckets import Buckets
from stretto_gateway.access.callers import Access, TokenFile
from stretto_gateway.http.app import create_app
from stretto_gateway.http.documents import JobParser
from stretto_gateway.problems import Problem
from stretto_gateway.read_model.job_views import no_such_job
from stretto_gateway.service import Gateway
from stretto_gateway.settings import GatewaySettings
from stretto_wire.contract.registry import AUDIT, STATE

from tests.waits import wait_until

from ..gateway_process import Running, installed
from ..rest_documents import problem, spec
from ..token_holders import client, given

PAD = "x" * 3900
LOOK_S = "0.05"


def large(variables: int, **more: Any) -> dict[str, Any]:
    """Return a specification of about 4 KB for each variable of its environment."""
    return spec(environment={f"V{number}": PAD for number in range(variables)}, **more)


def test_a_specification_larger_than_any_honest_one_is_refused(gateway: Running) -> None:
    with gateway.http() as http:
        refused = problem(http.post("/jobs", json=large(18)))
        assert (refused["status"], refused["type"]) == (422, "urn:stretto:problem:too-large-job")
        assert refused["field"] == "(document)"
        assert "at most 65536 bytes (STRETTO_GATEWAY_SPEC_BYTES)" in refused["remedy"]
        partitions = [{"name": f"day=2026-11-21/hour={number:04d}", "samples": 45840617} for number in range(700)]
        honest = spec(dataset={"growing": True, "partitions": partitions})
        assert http.post("/jobs", json=honest).status_code == 201


async def test_specifications_that_take_long_to_read_keep_nobody_waiting() -> None:
    """Method: one caller sends the largest bodies of YAML, in vain; the loop and another caller go on."""
    parser, body = JobParser(), b"x: [" + b"a," * 40_000 + b"]"
    began_s = time.monotonic()
    hostile = [asyncio.create_task(parser.parse("hostile", body, "application/yaml")) for _ in range(5)]
    turns_s: list[float] = []
    while len(turns_s) < 20:
        turn_s = time.monotonic()
        await asyncio.sleep(0.01)
        turns_s.append(time.monotonic() - turn_s)
    with pytest.raises(Problem):
        await parser.parse("calm", b"name: a", "application/yaml")
    assert statistics.median(turns_s) < 0.5
    assert not all(task.done() for task in hostile), time.monotonic() - began_s
    assert all(isinstance(error, Problem) for error in await asyncio.gather(*hostile, return_exceptions=True))


def test_an_unknown_name_is_compared_with_few_names() -> None:
    """Among 20,000 jobs it took half a second, in which the gateway served nobody else."""
    known = [f"team-{number % 50}-train-model-{number:06d}" for number in range(20_000)]
    began_s = time.process_time()
    refused = no_such_job("team-7-train-model-01999", known)
    assert time.process_time() - began_s < 0.1
    assert "did you mean team-" in refused.remedy


@pytest.mark.night
def test_a_teams_bytes_of_a_day_are_bounded_also_after_a_restart(tmp_path: Path) -> None:
    tokens = {team: given(tmp_path, f"of-{team}", "submitter", team=team) for team in ("loud", "calm")}
    with installed(tmp_path, {"STRETTO_GATEWAY_TEAM_BYTES_PER_DAY": str(1 << 20)}) as running:
        with client(running, tokens["loud"]) as loud:
            answers = [loud.post("/jobs", json=large(15)) for _ in range(20)]
            taken = [answer.json()["job"] for answer in answers if answer.status_code == 201]
            assert 14 <= len(taken) <= 18, "17 of 61 KB are a mebibyte"
            refused = problem(answers[-1])
            assert (refused["status"], refused["field"], refused["value"]) == (409, "team", "loud")
            assert refused["type"].endswith("bytes-used")
            assert "STRETTO_GATEWAY_TEAM_BYTES_PER_DAY" in refused["remedy"]
            assert loud.delete(f"/jobs/{taken[0]}").status_code == 202, "nobody is kept from ending a job"
        running.restart()
        with client(running, tokens["loud"]) as loud, client(running, tokens["calm"]) as calm:
            assert problem(loud.post("/jobs", json=large(15)))["type"].endswith("bytes-used")
            assert calm.post("/jobs", json=large(15)).status_code == 201


def test_a_request_that_changed_nothing_is_not_in_the_audit_log(gateway: Running) -> None:
    document = spec(dataset={"growing": True, "partitions": [{"name": "a", "samples": 10}]})
    job, data = document["name"], {"partitions": [{"name": "b", "samples": 5}]}
    with gateway.http() as http:
        for _ in range(3):
            assert http.post("/jobs", json=document).status_code in (200, 201)
        for _ in range(3):
            assert http.post(f"/jobs/{job}/data", json=data).status_code == 200
        for _ in range(3):
            assert http.delete(f"/jobs/{job}").status_code == 202
        entries = [line for line in http.get("/audit-log").text.splitlines() if job in line]
    assert len(entries) == 3


async def bounded(running: Running, stream: str, share: float) -> None:
    """Let what a stream has be this share of its bound."""
    operator = await running.operator()
    try:
        info = await operator.bus.ask(f"STREAM.INFO.{stream}")
        config = {**info["config"], "max_bytes": int(info["state"]["bytes"] / share)}
        await operator.bus.ask(f"STREAM.UPDATE.{stream}", config)
    finally:
        await operator.close()


def test_streams_that_fill_are_told_and_no_job_is_taken_before_the_state_is_full(tmp_path: Path) -> None:
    """Goal: an operator learns of it in time. Method: lower the bounds of bucket and audit log below what they have."""
    with installed(tmp_path, {"STRETTO_STREAM_LOOK_S": LOOK_S}) as running:

        def told() -> str:
            parts = (
                httpx.get(f"{running.url}/{name}", trust_env=False, timeout=60).text for name in ("readyz", "metrics")
            )
            return "".join(parts)

        with running.http() as http:
            assert http.post("/jobs", json=spec()).status_code == 201
            wait_until(lambda: f'stretto_stream_fullness{{service="gateway",stream="{AUDIT}"}} 0.' not in told())
            assert "full" not in httpx.get(f"{running.url}/readyz", trust_env=False, timeout=60).text
            asyncio.run(bounded(running, AUDIT, 0.85))
            wait_until(lambda: "the audit log is 85% full" in told())
            running.restart()  # it stores what it retains, so that the bucket has something
            assert http.post(f"{running.url}/api/v1/jobs", json=spec()).status_code == 201
            asyncio.run(bounded(running, STATE, 0.95))
            wait_until(lambda: "the saved state of the services is 95% full" in told())
            assert f'stretto_stream_fullness{{service="gateway",stream="{STATE}"}} 0.95' in told()
            refused = problem(http.post(f"{running.url}/api/v1/jobs", json=spec()))
            assert (refused["status"], refused["type"]) == (503, "urn:stretto:problem:state-full")
            assert "STRETTO_STREAMS_STATE_MAX_BYTES" in refused["remedy"]
            assert httpx.get(f"{running.url}/readyz", trust_env=False, timeout=60).status_code == 200


async def answered(lines: Callable[[], AsyncIterator[bytes]], sent: asyncio.Event) -> list[dict[str, Any]]:
    """Return all parts of the answer of a gateway whose audit log gives ``lines``; ``sent``: the first line is out."""
    access = Access(lambda: "", TokenFile(Path("none")), None, Buckets(0, 1), time.monotonic)
    gateway = Gateway(cast(Any, None), GatewaySettings(), time.time)
    app = create_app(gateway, access, cast(Any, None), lines)
    parts: list[dict[str, Any]] = []

    async def send(part: Any) -> None:
        parts.append(part)
        if part.get("body"):
            sent.set()

    async def receive() -> Any:
        if not asked:
            asked.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        return await asyncio.Future()

    asked: list[bool] = []
    scope = {"type": "http", "method": "GET", "path": "/api/v1/audit-log", "query_string": b"", "headers": []}
    async with asyncio.timeout(60):
        await app({**scope, "client": ("127.0.0.1", 1), "scheme": "http", "http_version": "1.1"}, receive, send)
    return parts


async def test_the_audit_log_is_sent_while_it_is_read() -> None:
    sent = asyncio.Event()

    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        await sent.wait()
        yield b"two"

    parts = await answered(lines, sent)
    assert b"".join(part.get("body", b"") for part in parts) == b"one\ntwo\n"


@pytest.mark.parametrize("fails", [True, False])
async def test_an_audit_log_that_cannot_be_read_is_an_error_and_an_empty_one_is_not(fails: bool) -> None:
    async def lines() -> AsyncIterator[bytes]:
        if fails:
            raise BusFault("no server")
        for line in ():
            yield line

    start, *_ = await answered(lines, asyncio.Event())
    assert (start["status"] >= 500) == fails


def test_a_bucket_gives_several_tokens_at_once_and_charges_more_than_it_has() -> None:
    buckets = Buckets(10.0, 100)
    assert buckets.wait_s("a", 0.0, 100) == 0.0
    buckets.charge("a", 0.0, 130)
    assert buckets.wait_s("a", 0.0, 20) == pytest.approx(5.0)
    assert buckets.wait_s("a", 5.0, 20) == pytest.approx(0.0)
    assert buckets.wait_s("b", 0.0, 100) == 0.0

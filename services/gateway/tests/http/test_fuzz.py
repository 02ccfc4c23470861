"""The gateway answers whatever its OpenAPI document lets a client send, and what not, and never with a fault."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from stretto_wire.rest.problems import MEDIA_TYPE

from ..gateway_process import Running, installed
from ..rest_documents import spec

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, which `make setup` installs")
DOCUMENT = Path(__file__).parents[4] / "proto" / "openapi.json"
ANSWER_S = 30.0
MINUTE, TEN_MINUTES = 15, 280
"""Generated requests of each operation and mode that take about so long."""
FAULTS = ("internal", "failed")
"""Kinds of problems that are defects; others of 503 say that no service runs here."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    quick = {"STRETTO_GATEWAY_CALL_TIMEOUT_S": "0.01", "STRETTO_GATEWAY_STREAMS": "1000"}
    with installed(tmp_path_factory.mktemp("fuzz"), quick) as running, running.http() as http:
        assert http.post("/jobs", json=spec("known")).status_code == 201
        yield running


@pytest.mark.parametrize("requests", [MINUTE, pytest.param(TEN_MINUTES, marks=pytest.mark.night)])
def test_no_request_is_answered_by_a_fault(running: Running, requests: int) -> None:
    document = schemathesis.openapi.from_path(DOCUMENT)
    for found in document.get_all_operations():
        for mode in schemathesis.GenerationMode:
            strategy = found.ok().as_strategy(generation_mode=mode)
            with contextlib.suppress(Unsatisfiable):  # an operation without parameters takes everything
                _try(running, strategy, requests)


def _try(running: Running, strategy: Any, requests: int) -> None:
    @settings(max_examples=requests, suppress_health_check=list(HealthCheck), deadline=None, database=None)
    @given(strategy)
    def answers(case: Any) -> None:
        parameters = case.path_parameters or {}
        if parameters.get("job") and uuid.uuid5(uuid.NAMESPACE_OID, str(case.query)).int % 2:
            case.path_parameters["job"] = "known"  # else hardly a job would be there
        if "/events" in case.path:
            case.query = {**(case.query or {}), "follow": "false"}  # a stream has no end
        headers = {"Authorization": f"Bearer {running.token}"}
        answer = case.call(base_url=running.url, headers=headers, timeout=ANSWER_S)
        shown = f"{case.as_curl_command()}: {answer.status_code} {answer.content[:500]!r}"
        assert answer.status_code < 500 or answer.status_code == 503, shown
        if answer.status_code >= 400 and answer.request.method != "HEAD":
            assert answer.headers["content-type"] == [MEDIA_TYPE], shown
            assert not answer.json()["type"].endswith(FAULTS), shown

    answers()

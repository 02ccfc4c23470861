"""openapi.json matches the code, types every answer, and no change may break a client of v1."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from stretto_gateway.http.components import AT, EVENT
from stretto_gateway.http.event_stream import frame
from stretto_gateway.http.openapi import METHODS, broken, committed, described, main
from stretto_gateway.streams.stored_events import StoredEvent
from stretto_messages.base import Message, example_of
from stretto_wire import encode
from stretto_wire.contract.registry import CHANNELS

from ..gateway_process import Running
from ..rest_documents import spec

PROTO = Path(__file__).parents[4] / "proto"
Schema = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Schema:
    return described()


def operations(document: Schema) -> list[Schema]:
    return [path[method] for path in document["paths"].values() for method in METHODS if method in path]


def check(document: Schema, schema: Schema, value: Any) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def test_the_committed_document_is_that_of_the_code(document: Schema) -> None:
    assert committed(PROTO) == document, "run `make proto` and commit proto/"
    assert main([str(PROTO), "--check"]) == 0


def test_every_operation_has_a_name_and_types_what_it_answers(document: Schema) -> None:
    names = [operation["operationId"] for operation in operations(document)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names), names
    for operation in operations(document):
        for status, answer in operation["responses"].items():
            for media_type, content in answer.get("content", {}).items():
                assert content["schema"].keys() & {"$ref", "items", "type"}, (operation["operationId"], media_type)
            assert answer.get("content") or status == "304"
            assert status[0] in "23" or [*answer["content"]] == ["application/problem+json"]


def test_every_reference_leads_to_a_component(document: Schema) -> None:
    found = set(re.findall(f'"{AT}([^"]*)"', json.dumps(document)))
    assert found <= document["components"]["schemas"].keys()
    assert "Decision" in found


def test_no_field_of_an_answer_is_possibly_absent(document: Schema) -> None:
    components = document["components"]["schemas"]
    views = [name for name in components if name.endswith("View")] + ["Decision", "JobAudit", "JobSummary", "JobSpec"]
    assert len(views) > 8
    for name in views:
        assert components[name]["properties"].keys() == set(components[name]["required"]), name


@pytest.mark.parametrize("channel", [one for one in CHANNELS if one.kind == "evt"], ids=lambda channel: channel.name)
def test_the_frame_of_every_event_is_described(document: Schema, channel: Any) -> None:
    message: Message = example_of(channel.message)
    stored = StoredEvent(
        seq=7, time_s=1.5, type=channel.type_name, service=channel.service, name=channel.name, job=message.job,
        trace_id=None, data=encode(message).decode(),
    )  # fmt: skip
    sent = json.loads(re.search(rb"^data: (.*)$", frame(stored), re.M)[1])  # type: ignore[index]
    check(document, document["components"]["schemas"][EVENT], sent)
    mapping = document["components"]["schemas"][EVENT]["discriminator"]["mapping"]
    check(document, {"$ref": mapping[channel.name]}, sent)
    with pytest.raises(jsonschema.ValidationError):
        check(document, {"$ref": mapping[channel.name]}, {**sent, "data": {}})


def _fields(document: Schema, component: str) -> Schema:
    return document["components"]["schemas"][component]["properties"]


def _operation(document: Schema, name: str) -> Schema:
    return next(operation for operation in operations(document) if operation["operationId"] == name)


def _path(document: Schema, old: str, new: str) -> None:
    document["paths"][new] = document["paths"].pop(old)


@pytest.mark.parametrize(
    ("change", "message", "words"),
    [
        (lambda d: d["paths"]["/api/v1/jobs"].pop("post"), "submitJob request", "was removed"),
        (lambda d: _path(d, "/api/v1/history", "/api/v1/past"), "listHistory request", "changed from GET"),
        (lambda d: _operation(d, "getJob").update(operationId="readJob"), "getJob request", "was removed"),
        (lambda d: _fields(d, "JobView").pop("plan"), "getJob 200 application/json", "was removed"),
        (lambda d: _fields(d, "JobView")["reason"].update(type="integer"), "getJob 200", "from string to integer"),
        (lambda d: _fields(d, "Wanted")["ps"]["anyOf"].pop(), "scaleJob request", "no longer be of type null"),
        (lambda d: _fields(d, "Wanted").pop("data"), "scaleJob request", "was removed"),
        (lambda d: _fields(d, "job.JobSpec")["priority"].update(maximum=5), "submitJob request", "maximum from"),
        (lambda d: d["components"]["schemas"]["Wanted"].update(required=["ps"]), "scaleJob request", "now required"),
        (lambda d: _operation(d, "listJobs")["parameters"].clear(), "listJobs request", "was removed"),
        (lambda d: _fields(d, "PodView")["state"]["enum"].append("lost"), "getJob 200", "new value lost"),
        (lambda d: d["components"]["schemas"]["Decision"]["required"].remove("plan"), "listDecisions", "absent"),
        (lambda d: _fields(d, "events.PlanDecided").pop("cost_per_hour"), "PlanDecidedEvent", "was removed"),
        (lambda d: _operation(d, "submitJob")["responses"].pop("200"), "submitJob 200", "was removed"),
    ],
)
def test_what_breaks_a_client_is_found(
    document: Schema, change: Callable[[Schema], object], message: str, words: str
) -> None:
    changed = deepcopy(document)
    change(changed)
    found = [each for each in broken(document, changed) if each.message.startswith(message)]
    assert any(words in str(each) for each in found), [str(each) for each in broken(document, changed)]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: None,
        lambda d: _fields(d, "JobView").update(more={"type": "string"}),
        lambda d: _operation(d, "listJobs")["parameters"].append(
            {"name": "more", "in": "query", "required": False, "schema": {"type": "string"}}
        ),
        lambda d: d["paths"].update({"/api/v1/more": {"get": {"operationId": "more", "responses": {}}}}),
        lambda d: _fields(d, "Wanted")["ps"]["anyOf"].append({"type": "string"}),
    ],
)
def test_what_grows_breaks_nobody(document: Schema, change: Callable[[Schema], object]) -> None:
    changed = deepcopy(document)
    change(changed)
    assert broken(document, changed) == []


@pytest.mark.night
def test_a_break_is_not_written(tmp_path: Path, document: Schema, capsys: pytest.CaptureFixture[str]) -> None:
    promised = deepcopy(document)
    promised["paths"]["/api/v1/gone"] = {"get": {"operationId": "getGone", "responses": {}}}
    (tmp_path / "openapi.json").write_text(json.dumps(promised))
    assert main([str(tmp_path)]) == 1
    assert "getGone request: (message) was removed" in capsys.readouterr().err
    assert committed(tmp_path) == promised
    assert main([str(tmp_path), "--new-baseline"]) == 0
    assert committed(tmp_path) == document


def test_a_gateway_answers_as_it_says(gateway: Running, document: Schema) -> None:
    body = spec()
    check(document, {"$ref": f"{AT}job.JobSpec"}, body)
    assert httpx.get(f"{gateway.url}/openapi.json", trust_env=False, timeout=60).json() == document
    with gateway.http() as http:
        path = f"/jobs/{body['name']}"
        answers = {"submitJob": http.post("/jobs", json=body), "getJob": http.get(path)}
        for name, address in {
            "listJobs": "/jobs", "listDecisions": f"{path}/decisions", "getTrace": f"{path}/trace",
            "listHistory": "/history", "getStatus": "/status", "getJobSchema": "/schema/job",
            "getEventSchema": "/schema/events/plan-decided",
        }.items():  # fmt: skip
            answers[name] = http.get(address)
        answers["cancelJob"] = http.delete(path)
        refused = http.get(f"{path}/audit")
    for name, answer in answers.items():
        described = _operation(document, name)["responses"][str(answer.status_code)]["content"]["application/json"]
        check(document, described["schema"], answer.json())
    check(document, {"$ref": f"{AT}ProblemBody"}, refused.json())


def test_the_schemas_of_events_are_those_of_the_wire(gateway: Running) -> None:
    with gateway.http() as http:
        for name in ("job-submitted", "plan-decided"):
            (path,) = (PROTO / "schemas").glob(f"evt.*.{name}.v1.json")
            assert http.get(f"/schema/events/{name}").json() == json.loads(path.read_text())
        unknown = http.get("/schema/events/plan-decide")
        assert (unknown.status_code, unknown.json()["field"]) == (404, "name")
        assert "plan-decided" in unknown.json()["remedy"]
    written = httpx.get(f"{gateway.url}/asyncapi.yaml", trust_env=False, timeout=60)
    assert written.headers["content-type"].startswith("application/yaml")
    assert written.text == (PROTO / "asyncapi.yaml").read_text()

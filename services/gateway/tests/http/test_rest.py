"""The REST interface of a real gateway on a real nats-server."""

from __future__ import annotations

import json
import re
import socket
import stat
import threading
import uuid
from typing import Any, get_args

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stretto_gateway.http.pages import problem_texts
from stretto_gateway.streams.stored_events import trace_id_of
from stretto_wire.rest.problems import Kind

from tests.live_bus import decision, plan_of
from tests.waits import wait_until

from ..gateway_process import Running
from ..rest_documents import problem, spec


def test_a_job_is_submitted_once_however_often_it_is_sent(gateway: Running) -> None:
    document = spec()
    with gateway.http() as http:
        first = http.post("/jobs", json=document)
        assert (first.status_code, first.json()["created"]) == (201, True)
        assert first.headers["location"] == f"/api/v1/jobs/{document['name']}"
        again = http.post("/jobs", json=document)
        assert (again.status_code, again.json()["created"]) == (200, False)
        events = http.get(f"/jobs/{document['name']}/events", params={"follow": False}).text
        assert events.count("event: job-submitted") == 1
        found = http.get(f"/jobs/{document['name']}").json()
        assert found["status"] == "submitted"
        assert found["spec"]["dataset"]["samples"] == 1000
        assert document["name"] in [job["name"] for job in http.get("/jobs").json()]


def test_a_job_continues_the_trace_of_who_submits_it(gateway: Running) -> None:
    document, trace_id = spec(), uuid.uuid4().hex
    with gateway.http() as http:
        http.post("/jobs", json=document, headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"})
        assert http.get(f"/jobs/{document['name']}").json()["trace_id"] == trace_id
        other = spec()
        assert http.post("/jobs", json=other, headers={"traceparent": "nonsense"}).status_code == 201
        assert len(http.get(f"/jobs/{other['name']}").json()["trace_id"]) == 32


@pytest.mark.parametrize("trace_id", ["../../../shutdown?aaaaaaaaaaaaaa", "0AF7651916CD43DD8448EB211C80319C", "a" * 31])
def test_a_trace_id_is_hexadecimal_or_none(trace_id: str) -> None:
    """It becomes part of the address at which a collector is asked."""
    assert trace_id_of(f"00-{trace_id}-00f067aa0ba902b7-01") is None
    assert trace_id_of("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01") == "0af7651916cd43dd8448eb211c80319c"


def test_cancelling_a_job_continues_its_trace(gateway: Running) -> None:
    document, trace_id = spec(), uuid.uuid4().hex
    with gateway.http() as http:
        http.post("/jobs", json=document, headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"})
        http.delete(f"/jobs/{document['name']}")
        told = http.get(f"/jobs/{document['name']}/events", params={"follow": False}).text
    bodies = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
    assert {body["event"]: body["trace_id"] for body in bodies} == {
        "job-submitted": trace_id,
        "job-cancelled": trace_id,
    }


def test_another_specification_under_the_same_name_is_a_conflict(gateway: Running) -> None:
    document = spec()
    with gateway.http() as http:
        http.post("/jobs", json=document)
        refused = http.post("/jobs", json={**document, "priority": 2})
        assert refused.status_code == 409
        assert problem(refused)["field"] == "name"
        assert "has been submitted" in problem(refused)["detail"]
        assert "another name" in problem(refused)["remedy"]
        # also for a gateway that has not read the first one from memory but from the stream
        gateway.restart()
    with gateway.http() as http:
        assert http.post("/jobs", json={**document, "priority": 2}).status_code == 409
        assert http.post("/jobs", json=document).status_code == 200


def test_who_submits_a_job_again_is_told_how_far_it_is(gateway: Running) -> None:
    document = spec()
    with gateway.http() as http:
        assert http.post("/jobs", json=document).json()["status"] == "submitted"
        http.delete(f"/jobs/{document['name']}")
        assert http.post("/jobs", json=document).json()["status"] == "cancelled"
        other = problem(http.post("/jobs", json={**document, "priority": 2}))
    assert "was cancelled" in other["detail"]
    assert "cancel " not in other["remedy"]


def test_everything_that_is_wrong_with_a_specification_is_told_with_its_place(gateway: Running) -> None:
    text = "name: a\nmodel: {entry: 'm:M', optimiser: adam}\ndataset:\n  samples: 0\n"
    with gateway.http() as http:
        told = problem(http.post("/jobs", content=text, headers={"Content-Type": "application/yaml"}))
        twice = problem(http.post("/jobs", content=text + "name: b\n", headers={"Content-Type": "application/yaml"}))
        many = problem(http.post("/jobs", json=spec("a", environment={f"A{n}": n for n in range(30)})))
    assert [(one["field"], one["value"], one["line"], one["column"]) for one in told["errors"]] == [
        ("model.optimiser", "adam", 2, 23),
        ("dataset.samples", "0", 4, 3),
    ]
    assert "optimizer?" in told["remedy"]
    assert [(one["field"], one["value"]) for one in twice["errors"]] == [
        ("model.optimiser", "adam"),
        ("name", "line 1 and line 5"),
    ]
    assert (len(many["errors"]), many["count"]) == (20, 30)


def test_a_bad_parameter_is_told_in_words_of_ours(gateway: Running) -> None:
    with gateway.http() as http:
        told = problem(http.get("/jobs", params={"status": "done"}))
        assert (told["field"], told["value"]) == ("status", "done")
        assert told["remedy"].startswith("one of 'submitted'")
        assert problem(http.get("/events", params={"after": -1}))["remedy"] == "at least 0"


def test_no_page_of_the_gateway_loads_anything_from_outside(gateway: Running) -> None:
    told = problem(httpx.get(f"{gateway.url}/docs", trust_env=False, timeout=60))
    assert (told["status"], told["remedy"]) == (404, "see /openapi.json for the addresses")


def test_of_many_who_submit_different_jobs_under_one_name_one_wins(gateway: Running) -> None:
    document, answers = spec(), []

    def submit(priority: int) -> None:
        with gateway.http() as http:
            answers.append(http.post("/jobs", json={**document, "priority": priority}).status_code)

    threads = [threading.Thread(target=submit, args=(priority,)) for priority in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [201, *[409] * 7]


def test_yaml_is_accepted_and_sizes_may_have_units(gateway: Running) -> None:
    name = f"job-{uuid.uuid4().hex[:12]}"
    text = f"""
name: {name}
model: {{entry: "m:M"}}
dataset: {{samples: 5}}
resources: {{ps: {{memory: {{min: 1Gi, max: 2Gi}}}}}}
"""
    with gateway.http() as http:
        assert http.post("/jobs", content=text, headers={"Content-Type": "application/yaml"}).status_code == 201
        view = http.get(f"/jobs/{name}").json()
    assert view["spec"]["resources"]["ps"]["memory"] == {"min": 2**30, "max": 2**31}


def test_without_the_token_nothing_is_told(gateway: Running) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
        for method, path in (("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/events"), ("GET", "/schema/job")):
            answer = httpx.request(method, f"{gateway.url}/api/v1{path}", headers=headers, trust_env=False, timeout=60)
            assert answer.status_code == 401
            assert problem(answer)["field"] == "Authorization"
            assert answer.headers["www-authenticate"] == "Bearer"
    assert gateway.token not in httpx.get(f"{gateway.url}/openapi.json", trust_env=False, timeout=60).text
    assert stat.S_IMODE((gateway.folder / "gateway.token").stat().st_mode) == 0o600


def test_cancel_is_repeatable_and_final(gateway: Running) -> None:
    document = spec()
    with gateway.http() as http:
        http.post("/jobs", json=document)
        path = f"/jobs/{document['name']}"
        for _ in range(2):
            answer = http.delete(path, params={"reason": "enough"})
            assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")
        assert http.get(path).json()["reason"] == "cancelled by admin: enough"
        assert problem(http.post(f"{path}/checkpoints"))["type"].endswith("over")


def test_another_number_of_pods_is_asked_for_within_the_limits_of_the_job(gateway: Running) -> None:
    document = spec(resources={"workers": {"count": {"max": 4}}})
    path = f"/jobs/{document['name']}"
    with gateway.http() as http:
        http.post("/jobs", json=document)
        assert problem(http.post(f"{path}/plan", json={"workers": 2}))["type"].endswith("no-plan")
        gateway.publish(decision(document["name"], plan_of(cores=1.0)))
        wait_until(lambda: http.get(path).json()["plan"])
        asked = http.post(f"{path}/plan", json={"workers": 3})
        assert (asked.status_code, asked.json()["plan"]["workers"], asked.json()["plan"]["ps"]) == (202, 3, 1)
        refused = problem(http.post(f"{path}/plan", json={"workers": 5}))
        assert (refused["status"], refused["field"], refused["value"]) == (422, "workers", "5")
        assert "1 to 4" in refused["remedy"]
        assert problem(http.post(f"{path}/plan", json={"wrokers": 2}))["status"] == 400
        for data in (-1, 1001, "some"):
            assert problem(http.post(f"{path}/plan", json={"data": data}))["field"].startswith("data")
        refused = problem(http.post(f"{path}/plan", json={"data": 7, "workers": 5}))
        assert refused["field"] == "workers", "and nothing is asked for"
        for data in (2, "auto"):
            asked = http.post(f"{path}/plan", json={"data": data})
            assert (asked.status_code, asked.json()["plan"]["workers"]) == (202, 1)
        told = http.get(f"{path}/events", params={"follow": False, "event": "plan-requested"}).text
        assert told.count("event: plan-requested") == 1
        told = http.get(f"{path}/events", params={"follow": False, "event": "data-workers-requested"}).text
        assert re.findall(r'"count":(\w+)', told) == ["2", "null"]


def test_a_number_of_data_workers_that_the_specification_fixes_stays(gateway: Running) -> None:
    document = spec(resources={"data": {"mode": "always", "count": 2}})
    with gateway.http() as http:
        http.post("/jobs", json=document)
        gateway.publish(decision(document["name"], plan_of()))
        wait_until(lambda: http.get(f"/jobs/{document['name']}").json()["plan"])
        for data in (0, "auto"):
            refused = problem(http.post(f"/jobs/{document['name']}/plan", json={"data": data, "workers": 1}))
            assert (refused["status"], refused["field"], refused["value"]) == (422, "data", str(data))
            assert "mode is always" in refused["remedy"]


def test_what_nobody_answers_is_unavailable_and_not_a_crash(gateway: Running) -> None:
    document = spec()
    with gateway.http() as http:
        http.post("/jobs", json=document)
        answer = http.post(f"/jobs/{document['name']}/checkpoints")  # no checkpoints service runs here
        assert answer.status_code == 503
        assert "checkpoints" in problem(answer)["detail"]


def test_unknown_jobs_paths_and_methods_are_problems(gateway: Running) -> None:
    with gateway.http() as http:
        for path in ("", "/decisions", "/events"):
            assert problem(http.get(f"/jobs/no-such-job{path}"))["status"] == 404
        document = spec()
        http.post("/jobs", json=document)
        mistyped = problem(http.get(f"/jobs/{document['name'][:-1]}"))
        assert f"did you mean {document['name']}?" in mistyped["remedy"]
        assert problem(http.get("/jobs/Not_A_Name"))["field"] == "job"
        assert problem(http.get("/nowhere"))["status"] == 404
        assert problem(http.put("/jobs"))["status"] == 405
        assert problem(http.get("/events", params={"after": "x"}))["field"] == "after"
        assert problem(http.get("/events", headers={"Last-Event-ID": "x"}))["field"] == "Last-Event-ID"


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(gateway: Running) -> None:
    def endless() -> Any:
        for _ in range(100):
            yield b" " * 65536

    with gateway.http() as http:
        for path in ("/jobs", "/jobs/a/plan", "/jobs/a/data"):
            assert problem(http.post(path, content=b" " * 200_000))["status"] == 413
            assert problem(http.post(path, content=endless()))["status"] == 413


def raw(gateway: Running, *headers: str, body: bytes = b"", path: str = "/api/v1/jobs") -> bytes:
    """Send a request as these bytes, all of them before the answer is read, and return the answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: a", f"Authorization: Bearer {gateway.token}", *headers, "", ""))
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 2", "Content-Length: 2"),
        ("Content-Length: 2", "content-length: 20"),
        ("Content-Length: 2", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Content-Length: 2, 2",),
    ],
)
def test_a_request_of_two_lengths_is_refused(gateway: Running, headers: tuple[str, ...]) -> None:
    assert raw(gateway, *headers, body=b"{}").startswith(b"HTTP/1.1 400 ")


def test_who_sends_too_large_a_body_in_one_go_sees_the_answer(gateway: Running) -> None:
    """The answer would be lost if the connection were reset while bytes are on their way."""
    large = 20 << 20
    told = raw(gateway, f"Content-Length: {large}", "Connection: close", body=b" " * large)
    assert told.startswith(b"HTTP/1.1 413 ")
    assert b"at most 131072 bytes" in told
    chunks = (b"10000\r\n" + b" " * 65536 + b"\r\n") * 100 + b"0\r\n\r\n"
    told = raw(gateway, "Transfer-Encoding: chunked", "Connection: close", body=chunks)
    assert told.startswith(b"HTTP/1.1 413 ")
    told = raw(gateway, f"Content-Length: {large}", "Expect: 100-continue")
    assert told.startswith(b"HTTP/1.1 413 "), "nobody who asks for leave gets it"


@pytest.mark.parametrize("part", [b"[", b'{"a":', b'[{"a":'])
def test_brackets_in_brackets_are_refused_in_every_body(gateway: Running, part: bytes) -> None:
    with gateway.http() as http:
        job = spec()
        assert http.post("/jobs", json=job).status_code == 201
        for path in ("/jobs", "/jobs/preview", f"/jobs/{job['name']}/plan", f"/jobs/{job['name']}/data"):
            for kind in ("application/json", "application/yaml"):
                answer = http.post(path, content=part * (120_000 // len(part)), headers={"Content-Type": kind})
                assert 400 <= problem(answer)["status"] < 500, (path, kind)


def test_a_misspelt_query_parameter_is_refused_with_the_nearest(gateway: Running) -> None:
    with gateway.http() as http:
        refused = problem(http.get("/jobs", params={"stauts": "training", "owner": ["a", "b"]}))
        assert (refused["status"], refused["field"], refused["value"]) == (422, "stauts", "training")
        assert refused["remedy"] == "no such parameter here; did you mean status?"
        assert [one["field"] for one in refused["errors"]] == ["stauts", "owner"]
        beyond = problem(http.get("/jobs", params={"limit": 1001}))
        assert (beyond["status"], beyond["value"], beyond["remedy"]) == (422, '"1001"', "at most 1000")
        assert problem(http.get("/status", params={"verbose": 1}))["status"] == 422
        assert http.get("/jobs", params={"status": ["training", "failed"]}).status_code == 200


def test_the_schema_is_one_that_a_good_job_satisfies_and_a_bad_one_does_not(gateway: Running) -> None:
    import jsonschema

    with gateway.http() as http:
        schema = http.get("/schema/job").json()
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(spec("a"))
    assert not validator.is_valid({**spec("a"), "pirority": 1})


def test_health_and_metrics_need_no_token(gateway: Running) -> None:
    with gateway.http() as http:
        http.post("/jobs", json=spec())
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False, timeout=60).status_code == 200
    lines = httpx.get(f"{gateway.url}/metrics", trust_env=False, timeout=60).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["stretto_gateway_ready"] == "1"
    assert int(values["stretto_gateway_last_seq"]) > 0
    assert int(values['stretto_gateway_jobs{status="submitted"}']) > 0
    jobs = sum(int(value) for name, value in values.items() if name.startswith("stretto_gateway_jobs{"))
    assert 0 <= int(values["stretto_gateway_stopped_jobs"]) < jobs, "on a slow machine jobs of other tests may have"
    started = int(values["stretto_gateway_start_seconds_count"])
    assert int(values['stretto_gateway_start_seconds_bucket{le="+Inf"}']) == started
    assert int(values['stretto_gateway_start_seconds_bucket{le="45"}']) <= started


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
)
UPDATE_RULES = ("adagrad", "adam", "adamw", "ftrl", "rmsprop", "rowwise-adagrad", "sgd")
JOB_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
WRONG = {
    ("name",): st.text(max_size=80).filter(lambda text: JOB_NAME.fullmatch(text) is None) | st.integers(),
    ("api",): VALUES.filter(lambda value: value != "stretto/v1"),
    ("model", "entry"): st.text(max_size=40).filter(lambda text: ":" not in text) | st.integers(),
    ("model", "optimizer"): VALUES.filter(lambda value: value not in UPDATE_RULES),
    ("dataset", "samples"): st.integers(max_value=0) | st.floats() | st.text(max_size=5) | st.just(10**14),
    ("dataset", "batch_size"): st.integers(min_value=10**6 + 1) | st.integers(max_value=0) | st.none(),
    ("resources",): st.lists(SCALARS, max_size=2)
    | st.sampled_from([{"fixed": True}, {"workers": {"count": {"min": 9, "max": 2}}}]),
    ("priority",): st.floats(max_value=0) | st.floats(min_value=1001) | st.just(float("nan")) | st.text(max_size=4),
    ("environment",): st.dictionaries(st.sampled_from(["1A", "A B", ""]), st.text(max_size=3), min_size=1),
    ("unknown_field",): VALUES,
}  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(WRONG)).flatmap(lambda path: st.tuples(st.just(path), WRONG[path])))
def test_a_specification_with_one_bad_field_is_refused_by_its_name(
    gateway: Running, wrong: tuple[tuple[str, ...], Any]
) -> None:
    path, value = wrong
    document = spec("bad-job")
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    body = json.dumps(document)
    with gateway.http() as http:
        answer = http.post("/jobs", content=body.encode(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    told = problem(answer)
    assert path[0] in told["field"]
    assert told["remedy"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=400)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    kind=st.sampled_from(["application/json", "application/yaml", "text/plain", "image/png", ""]),
)
@example(body=b"[" * 100_000, kind="application/json")
@example(body=b"[" * 100_000, kind="application/yaml")
@example(body=b"a: &a [1]\nb: [*a, *a]", kind="application/yaml")
@example(body=b"!!python/object/apply:os.system [id]", kind="application/yaml")
@example(body=b'{"name": "\\ud800"}', kind="application/json")
@example(body=b"name: 2001-01-01\n1: 2", kind="application/yaml")
@example(body=b"a: " + b"9" * 5000, kind="application/yaml")
@example(body=b"a: 1:" + b"59:" * 3000 + b"1", kind="application/yaml")
@example(body=b"? {a: 1}\n: 2", kind="application/yaml")
@example(body=b"", kind="application/json")
@example(body=bytes(80), kind="application/json")
def test_no_body_at_all_makes_the_gateway_fail(gateway: Running, body: bytes, kind: str) -> None:
    with gateway.http() as http:
        answer = http.post("/jobs", content=body, headers={"Content-Type": kind} if kind else {})
        assert 400 <= answer.status_code < 500
        problem(answer)


def test_every_problem_has_a_page_that_anybody_may_read(gateway: Running) -> None:
    assert list(problem_texts()) == sorted(get_args(Kind))
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=60) as anybody:
        refused = problem(anybody.get("/api/v1/jobs"))
        assert refused["help"] == "/problems/unauthorized"
        for kind in get_args(Kind):
            page = anybody.get(f"/problems/{kind}")
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), kind
            assert f"<h1>Problem: {kind}</h1>" in page.text
        assert all(f'href="/problems/{kind}"' in anybody.get("/problems").text for kind in get_args(Kind))
        unknown = anybody.get("/problems/<script>")
        assert problem(unknown)["type"] == "urn:stretto:problem:not-found"


def test_a_browser_at_the_address_of_the_gateway_comes_to_the_console(gateway: Running) -> None:
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=60) as anybody:
        moved = anybody.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
        assert (moved.status_code, moved.headers["location"]) == (307, "/console/")
        assert anybody.get(moved.headers["location"]).status_code == 200
        assert anybody.get("/", headers={"Accept": "*/*"}).headers["location"] == "/openapi.json"

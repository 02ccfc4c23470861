"""Forwarders, killed and restarted, over a receiver that fails: nothing is lost, the order is kept."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto_forwarder.tensorboard import FILE, masked
from stretto_messages.books import AppliedBooks, RowBooks
from stretto_messages.dispatcher import EvaluationMeasured
from stretto_messages.gateway import JobCancelled
from stretto_messages.profiler import StragglerCleared
from stretto_messages.values import Evaluation, MetricValue

from tests.live_bus import finished
from tests.waits import until

from .conftest import SECRET, ForwarderHarness, Receiver, Request

Answer = tuple[int, dict[str, str]]


def ids(requests: list[Request]) -> list[str]:
    return [request.id for request in requests]


def first_of_each(requests: list[Request]) -> list[str]:
    return list(dict.fromkeys(ids(requests)))


def genuine(request: Request) -> bool:
    stamp = request.headers["webhook-timestamp"]
    content = f"{request.id}.{stamp}.".encode() + request.body
    mac = hmac.digest(base64.b64decode(SECRET.removeprefix("whsec_")), content, "sha256")
    return request.headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"


async def test_events_arrive_in_order_as_signed_cloud_events(harness: ForwarderHarness, receiver: Receiver) -> None:
    sent = await harness.publish(range(20))
    harness.start({"name": "crm", "url": f"{receiver.url}/hook"})
    await until(lambda: len(receiver.taken()) == 20)
    assert ids(receiver.taken()) == sent
    for number, request in enumerate(receiver.taken()):
        assert genuine(request)
        assert abs(time.time() - int(request.headers["webhook-timestamp"])) < 60
        assert json.loads(request.body)["samples_done"] == number
        shown = {name: request.headers[name] for name in ("ce-specversion", "ce-type", "ce-subject", "content-type")}
        assert shown == {
            "ce-specversion": "1.0",
            "ce-type": "stretto.dispatcher.job-progressed.v1",
            "ce-subject": "a",
            "content-type": "application/json",
        }
    sequences = [int(request.headers["ce-sequence"]) for request in receiver.taken()]
    assert sequences == sorted(set(sequences))


async def test_an_endpoint_hears_only_what_it_wants(harness: ForwarderHarness, receiver: Receiver) -> None:
    await harness.publish(range(3), "a")
    await harness.client.publish(JobCancelled(job="a", by="x"))
    await harness.client.publish(JobCancelled(job="ab", by="x"))
    await harness.client.publish(StragglerCleared(job="b", pod="worker-0"))
    both = ["job-cancelled", "straggler-cleared"]
    harness.start(
        {"name": "one", "url": f"{receiver.url}/one", "events": ["job-cancelled"]},
        {"name": "two", "url": f"{receiver.url}/two", "events": both},
        {"name": "job", "url": f"{receiver.url}/job", "jobs": ["a"]},
        {"name": "some", "url": f"{receiver.url}/some", "jobs": ["a*"], "events": both},
        {"name": "late", "url": f"{receiver.url}/late", "start": 5},
    )
    wanted = {"/one": 2, "/two": 3, "/job": 4, "/some": 2, "/late": 2}
    await until(lambda: {path: len(receiver.taken(path)) for path in wanted} == wanted)
    assert {request.headers["ce-subject"] for request in receiver.taken("/some")} == {"a", "ab"}


async def test_failures_are_tried_again_until_the_event_is_there_and_nothing_overtakes(
    harness: ForwarderHarness, receiver: Receiver
) -> None:
    tries: dict[str, int] = {}

    def stumbling(request: Request) -> Answer:
        tries[request.id] = tries.get(request.id, 0) + 1
        if tries[request.id] == 1:
            return 503, {"Retry-After": "0"}
        return (500, {}) if tries[request.id] == 2 else (200, {})

    receiver.behave = stumbling
    sent = await harness.publish(range(10))
    harness.start({"name": "crm", "url": f"{receiver.url}/hook"})
    await until(lambda: len(receiver.taken()) == 10)
    assert ids(receiver.taken()) == sent
    assert ids(receiver.seen) == [id_ for id_ in sent for _ in range(3)]
    assert all(genuine(request) for request in receiver.seen)


async def test_retry_after_is_waited_for(harness: ForwarderHarness, receiver: Receiver) -> None:
    came: list[float] = []

    def busy(_: Request) -> Answer:
        came.append(time.monotonic())
        return (429, {"Retry-After": "1"}) if len(came) == 1 else (200, {})

    receiver.behave = busy
    await harness.publish(range(1))
    harness.start({"name": "crm", "url": f"{receiver.url}/hook"})
    await until(lambda: len(came) == 2)
    assert came[1] - came[0] >= 1


async def test_an_endpoint_that_hangs_or_is_dead_holds_no_other_up(
    harness: ForwarderHarness, receiver: Receiver
) -> None:
    hung = asyncio.Event()
    loop = asyncio.get_running_loop()

    def behave(request: Request) -> Answer:
        if request.path == "/hangs" and not hung.is_set():
            loop.call_soon_threadsafe(hung.set)
            time.sleep(2)  # longer than its patience
        return 200, {}

    receiver.behave = behave
    sent = await harness.publish(range(5))
    dead = "http://127.0.0.1:1/hook"
    harness.start(
        {"name": "hangs", "url": f"{receiver.url}/hangs"},
        {"name": "dead", "url": dead},
        {"name": "well", "url": f"{receiver.url}/well"},
        timeout_s=0.5,
    )
    await until(lambda: len(receiver.taken("/well")) == 5)
    await until(lambda: len(first_of_each(receiver.taken("/hangs"))) == 5)
    assert first_of_each(receiver.taken("/hangs")) == sent


async def test_killed_at_any_moment_it_loses_nothing_and_keeps_the_order(
    harness: ForwarderHarness, receiver: Receiver
) -> None:
    """Each process is killed while its request is answered; an event is never handed out twice at once."""
    sent = await harness.publish(range(30))
    process = harness.start({"name": "crm", "url": f"{receiver.url}/hook"}, silence_s=2.0)
    kills = {5, 6, 17}

    def deadly(request: Request) -> Answer:
        number = json.loads(request.body)["samples_done"]
        if number in kills:
            kills.discard(number)
            process.kill()
            process.wait()
        return 200, {}

    receiver.behave = deadly
    while len(first_of_each(receiver.taken())) < 30:
        await asyncio.sleep(0.02)
        if process.poll() is not None:
            process = harness.start({"name": "crm", "url": f"{receiver.url}/hook"}, silence_s=2.0)
    assert not kills
    assert first_of_each(receiver.taken()) == sent
    assert ids(receiver.taken()) == [id_ for id_ in ids(receiver.taken()) if id_ in sent]
    assert len(receiver.taken()) <= 30 + 3


async def test_many_replicas_post_each_event_once_and_in_order(harness: ForwarderHarness, receiver: Receiver) -> None:
    for _ in range(3):
        harness.start({"name": "crm", "url": f"{receiver.url}/hook"})
    sent = await harness.publish(range(60))
    await until(lambda: len(receiver.taken()) >= 60)
    assert ids(receiver.taken()) == sent


async def test_who_is_gone_is_left_alone_until_it_has_another_address(
    harness: ForwarderHarness, receiver: Receiver
) -> None:
    receiver.behave = lambda request: (410, {}) if request.path == "/old" and len(receiver.seen) >= 2 else (200, {})
    sent = await harness.publish(range(5))
    harness.start({"name": "crm", "url": f"{receiver.url}/old"})
    await until(lambda: "answered 410 and is stopped" in harness.log())
    harness.end()
    harness.start({"name": "crm", "url": f"{receiver.url}/old"}, {"name": "other", "url": f"{receiver.url}/other"})
    await until(lambda: len(receiver.taken("/other")) == 5)
    assert ids([request for request in receiver.seen if request.path == "/old"]) == sent[:3]
    harness.end()
    harness.start({"name": "crm", "url": f"{receiver.url}/new"})
    await until(lambda: len(receiver.taken("/new")) == 3)
    assert ids(receiver.taken("/new")) == sent[2:]


async def test_what_is_given_up_is_in_the_dead_letters_and_the_rest_goes_on(
    harness: ForwarderHarness, receiver: Receiver
) -> None:
    poison = 3
    receiver.behave = lambda request: (400, {}) if json.loads(request.body)["samples_done"] == poison else (200, {})
    sent = await harness.publish(range(6))
    harness.start({"name": "crm", "url": f"{receiver.url}/hook"}, give_up_s=0.3)
    await until(lambda: len(receiver.taken()) == 5)
    assert ids(receiver.taken()) == [id_ for number, id_ in enumerate(sent) if number != poison]
    (letter,) = await harness.client.dead_letters()
    told = {name: letter.headers[name] for name in ("reason", "error", "service", "endpoint")}
    assert told == {"reason": "given-up", "error": "HTTP 400", "service": "forwarder", "endpoint": "crm"}
    assert json.loads(letter.data)["samples_done"] == poison
    assert letter.subject == "dlq.evt.v1.dispatcher.job-progressed.a"


async def test_redirects_and_private_addresses_are_refused(harness: ForwarderHarness, receiver: Receiver) -> None:
    receiver.behave = lambda request: (302, {"Location": f"{receiver.url}/elsewhere"})
    await harness.publish(range(1))
    harness.start({"name": "moved", "url": f"{receiver.url}/hook"}, give_up_s=0.1)
    await until(lambda: harness.log().count("dead letter") == 1)
    assert "redirects are not followed" in harness.log()
    harness.end()
    port = receiver.url.rpartition(":")[2]
    harness.start(
        {"name": "loopback", "url": f"https://localhost:{port}/private"},
        {"name": "mapped", "url": f"https://[::ffff:127.0.0.1]:{port}/private"},
        {"name": "metadata", "url": "http://169.254.169.254/private"},
        allow_networks="[]",
        give_up_s=0.1,
    )
    await until(lambda: harness.log().count("dead letter") == 4)
    found = await harness.client.dead_letters()
    assert {letter.headers["endpoint"] for letter in found} == {"moved", "loopback", "mapped", "metadata"}
    for letter in found[1:]:
        assert "STRETTO_FORWARDER_ALLOW_NETWORKS" in letter.headers["error"]
    assert [request.path for request in receiver.seen if request.path != "/hook"] == []


async def test_no_secret_is_in_logs_or_spans(harness: ForwarderHarness, receiver: Receiver) -> None:
    receiver.behave = lambda _: (500, {})
    await harness.publish(range(2))
    harness.start({"name": "crm", "url": f"{receiver.url}/hook"}, give_up_s=0.3, log_level="debug")
    await until(lambda: harness.log().count("dead letter") == 2)
    harness.end()
    written = harness.log() + "".join(path.read_text() for path in harness.folder.glob("spans/*"))
    assert "post stretto.dispatcher.job-progressed.v1" in written
    for secret in (SECRET, SECRET.removeprefix("whsec_"), "s" * 32):
        assert secret not in written


async def test_it_may_read_nothing_but_events(harness: ForwarderHarness) -> None:
    from stretto_bus import BusFault
    from stretto_bus.bus import Bus
    from stretto_bus.reading.durable import Durable
    from stretto_wire.contract.registry import STREAM

    bus = await Bus.connect(harness.server.url, harness.server.login("forwarder"), "forwarder")
    refused = []
    for pattern in ("*.tel.>", ">", "journal.>", "*.evt.v1.gateway.job-submitted.*"):
        with contextlib.suppress(BusFault):
            cursor = await Durable.open(bus, STREAM, "forwarder-x", pattern, {"deliver_policy": "all"}, {}, 15.0)
            await cursor.close()
            continue
        refused.append(pattern)
    for subject in ("evt.v1.gateway.job-cancelled.a", "tel.v1.ps.ps-0.a", "$KV.STATE.x.forwarder.a"):
        with contextlib.suppress(BusFault):
            await bus.store(subject, b"{}")
            continue
        refused.append(subject)
    await bus.close()
    assert refused == [
        "*.tel.>", ">", "journal.>", "evt.v1.gateway.job-cancelled.a", "tel.v1.ps.ps-0.a", "$KV.STATE.x.forwarder.a"
    ]  # fmt: skip


@dataclass
class TrackingServer:
    """A stand-in with what MLflow documents: an experiment, runs by tag, and points, which it keeps once."""

    experiments: list[str] = field(default_factory=list[str])
    runs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    points: dict[tuple[Any, ...], None] = field(default_factory=dict[tuple[Any, ...], None])
    logged: int = 0

    def answer(self, request: Request) -> tuple[int, Any]:
        what = request.path.removeprefix("/api/2.0/mlflow/").partition("?")[0]
        asked = json.loads(request.body or b"{}")
        match what:
            case "experiments/get-by-name" if not self.experiments:
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"}
            case "experiments/get-by-name":
                return 200, {"experiment": {"experiment_id": "7", "name": self.experiments[0]}}
            case "experiments/create":
                self.experiments.append(asked["name"])
                return 200, {"experiment_id": "7"}
            case "runs/search":
                assert asked["experiment_ids"] == ["7"]
                found = [run for run in self.runs if asked["filter"] == f"tags.`stretto.job` = '{run['run_name']}'"]
                return 200, {"runs": found[: asked["max_results"]]} if found else {}
            case "runs/create":
                assert asked["tags"] == [{"key": "stretto.job", "value": asked["run_name"]}]
                self.runs.append({**asked, "info": {"run_id": f"r{len(self.runs)}"}})
                return 200, {"run": self.runs[-1]}
            case "runs/log-batch":
                self.logged += 1
                for each in asked["metrics"]:
                    self.points[asked["run_id"], each["key"], each["timestamp"], each["step"], each["value"]] = None
                return 200, {}
            case "runs/update":
                self.runs[int(asked["run_id"][1:])]["status"] = asked["status"]
                return 200, {}
        raise AssertionError(what)


def points_in(folder: Path) -> list[int]:
    """Return the stored message of each whole event of a file of TensorBoard, by checksums that hold."""
    content, found = (folder / FILE).read_bytes(), list[int]()
    while len(content) >= 16 + (length := int.from_bytes(content[:8], "little")):
        data, content = content[12 : 12 + length], content[12 + length :]
        assert int.from_bytes(content[:4], "little") == masked(data)
        content = content[4:]
        if b"stretto:" in data:
            found.append(int(data.rpartition(b":")[2]))
    return found


async def test_points_of_metrics_are_kept_once_whatever_dies_or_fails(
    harness: ForwarderHarness, receiver: Receiver
) -> None:
    """A run of MLflow and a file of TensorBoard for each job; the forwarder is killed between, and receivers fail."""
    tracking = TrackingServer()
    lost: set[bytes] = set()

    def answer(request: Request) -> tuple[int, dict[str, str], bytes]:
        status, document = tracking.answer(request)
        if "log-batch" in request.path and request.body not in lost:
            lost.add(request.body)  # it was logged, and the answer is lost
            return 503, {}, b"busy"
        return status, {}, json.dumps(document).encode()

    receiver.answer = answer
    endpoints = (
        {"name": "mlflow", "form": "mlflow", "url": f"{receiver.url}/"},
        {"name": "board", "form": "tensorboard", "folder": str(harness.folder / "board")},
    )
    await harness.publish(range(1, 6), "a")
    await harness.client.publish(StragglerCleared(job="a", pod="worker-0"))
    quality = Evaluation(samples=9, loss=0.25, auc=0.75, metrics=(MetricValue(name="auc@5", value=0.5),))
    process = harness.start(*endpoints)
    board = harness.folder / "board" / "a"
    await until(lambda: len(tracking.points) == 5 and (board / FILE).exists() and len(points_in(board)) == 5)
    process.kill()
    process.wait(60)
    (board / FILE).write_bytes((board / FILE).read_bytes() + b"\x20" + bytes(20))  # left by one that died as it wrote
    await harness.client.publish(EvaluationMeasured(job="a", samples_done=9, samples_done_after=9, evaluation=quality))
    await harness.publish(range(1, 3), "b")
    books = AppliedBooks(rows=RowBooks(gradients_left_out=7, rows_expired=4))
    await harness.client.publish(finished("b", 30, applied=books))
    await harness.client.publish(JobCancelled(job="a", by="x"))
    harness.start(*endpoints, silence_s=1)
    await until(lambda: len(tracking.points) == 12 and tracking.runs[0].get("status") == "KILLED")
    assert tracking.logged > len(tracking.points) - 2
    assert [run["run_name"] for run in tracking.runs] == ["a", "b"]
    assert tracking.experiments == ["stretto"]
    assert [point[1:2] + point[3:] for point in tracking.points if point[0] == "r0"] == [
        *(("samples_per_s", step, point[4]) for step, point in enumerate(tracking.points, 1) if step < 6),
        ("evaluation/loss", 9, 0.25), ("evaluation/auc", 9, 0.75), ("evaluation/auc_5", 9, 0.5),
    ]  # fmt: skip
    of_rows = [
        point[1:2] + point[3:] for point in tracking.points if point[1] in ("gradients_left_out", "rows_expired")
    ]
    assert of_rows == [("gradients_left_out", 30, 7.0), ("rows_expired", 30, 4.0)]
    await until(lambda: len(points_in(board)) == 6 and len(points_in(board.with_name("b"))) == 3)
    assert points_in(board) == sorted(set(points_in(board)))

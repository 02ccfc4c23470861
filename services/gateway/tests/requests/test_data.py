"""Data that arrive while a job trains: what a user may say of them, to a real gateway."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import stretto_wire as wire
from stretto_bus import Client
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.read_model.summaries import STALLED_S, as_of
from stretto_messages.dispatcher import EvaluationMeasured, ShardAbandoned
from stretto_messages.gateway import DataArrived
from stretto_messages.values import Evaluation, MetricValue, Shard

from tests import live_bus

from ..gateway_process import Running


def growing(**more: Any) -> dict[str, Any]:
    dataset = {"growing": True, "partitions": [{"name": "a", "samples": 100}], **more}
    return {"name": f"job-{uuid.uuid4().hex[:12]}", "model": {"entry": "m:M"}, "dataset": dataset}


def test_data_are_added_once_however_often_it_is_said_and_closing_is_final(gateway: Running) -> None:
    document = growing(held_out="test")
    name = document["name"]
    with gateway.http() as http:
        http.post("/jobs", json=document)
        more = {"partitions": [{"name": "b", "samples": 50, "priority": 3}, {"name": "a", "samples": 120}]}
        for _ in range(3):
            told = http.post(f"/jobs/{name}/data", json=more)
            assert (told.status_code, told.json()) == (
                200, {"job": name, "growing": True, "samples": 170, "partitions": 2})  # fmt: skip
        found = http.get(f"/jobs/{name}").json()
        assert found["data"]["partitions"]["b"] == {"samples": 50, "priority": 3}
        assert found["progress"]["samples_total"] == 170
        refused = [
            ({"partitions": [{"name": "a", "samples": 119}]}, 409, "samples"),
            ({"partitions": [{"name": "test", "samples": 1}]}, 409, "partition"),
            ({"partitions": [{"name": "a b", "samples": 1}]}, 400, "partitions.0.name"),
            ({"partitions": [{"name": "a", "samples": 0}]}, 400, "partitions.0.samples"),
            ({"partitions": [{"name": "c", "samples": 9}, {"name": "c", "samples": 5}]}, 422, "partitions"),
            ({"partitions": [{"name": f"p{n}", "samples": 1} for n in range(999)]}, 409, "partition"),
        ]
        for body, status, field in refused:
            answer = http.post(f"/jobs/{name}/data", json=body)
            assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text
        for _ in range(2):
            assert http.post(f"/jobs/{name}/data", json={"close": True}).json()["growing"] is False
        assert http.post(f"/jobs/{name}/data", json=more).status_code == 200  # known already
        late = http.post(f"/jobs/{name}/data", json={"partitions": [{"name": "a", "samples": 500}]})
        assert (late.status_code, late.json()["type"]) == (409, "urn:stretto:problem:closed")
        events = http.get(f"/jobs/{name}/events", params={"follow": False}).text
        assert events.count("event: data-arrived") == 2


def test_a_dataset_that_does_not_grow_takes_no_more(gateway: Running) -> None:
    document = {"name": f"job-{uuid.uuid4().hex[:12]}", "model": {"entry": "m:M"}, "dataset": {"samples": 5}}
    with gateway.http() as http:
        http.post("/jobs", json=document)
        refused = http.post(f"/jobs/{document['name']}/data", json={"partitions": [{"name": "a", "samples": 5}]})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:stretto:problem:not-growing")
        refused = http.post(f"/jobs/{document['name']}/data", json={"close": True})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:stretto:problem:not-growing")
        assert http.post("/jobs/nobody/data", json={"close": True}).status_code == 404


def test_words_at_the_same_time_are_heard_one_after_the_other(gateway: Running) -> None:
    """Ten at once: whoever is told yes is in the stream, and after closing nobody is told yes."""
    document = growing()
    name = document["name"]
    with gateway.http() as http:
        http.post("/jobs", json=document)

    def tell(number: int) -> int:
        body = {"close": True} if number == 7 else {"partitions": [{"name": f"p{number}", "samples": 10}]}
        with gateway.http() as http:
            while (answer := http.post(f"/jobs/{name}/data", json=body)).status_code == 503:
                pass
            return answer.status_code

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(tell, range(10)))
    assert answers[7] == 200

    async def stored(client: Client) -> list[DataArrived]:
        everything = [event.message async for event in client.events(follow=False)]
        return [message for message in everything if isinstance(message, DataArrived) and message.job == name]

    told = gateway.by_operator(stored)
    named = {part.name for message in told for part in message.partitions}
    assert named == {f"p{n}" for n, status in enumerate(answers) if status == 200 and n != 7}
    assert [message.closed for message in told] == [False] * (len(told) - 1) + [True]


def test_a_job_that_waits_for_data_is_not_shown_as_stalled() -> None:
    projection = Projection()
    spec = wire.JobSpec.parse(growing())
    projection.apply(wire.JobSubmitted(job=spec.name, spec=spec), 1, 1.0)

    def progressed(done: int, seq: int) -> None:
        projection.apply(live_bus.progressed(spec.name, done, 100, 9.0), seq, float(seq))

    progressed(60, 2)
    view = projection.jobs[spec.name]
    assert as_of(view, 3.0 + STALLED_S).progress.stalled_since_s == 2.0
    lost = Shard(id=1, attempt=3, epoch=0, start=0, length=20, offset=5)
    projection.apply(ShardAbandoned(job=spec.name, shard=lost, reason="bad rows"), 3, 3.0)
    progressed(85, 4)
    waiting = as_of(view, 99.0).progress
    assert (waiting.stalled_since_s, waiting.samples_per_s) == (None, 0.0)


def test_evaluations_make_a_learning_curve() -> None:
    projection = Projection()
    spec = wire.JobSpec.parse(growing())
    projection.apply(wire.JobSubmitted(job=spec.name, spec=spec), 1, 1.0)
    for seq in range(2, 1500):
        found = Evaluation(samples=10, loss=1 / seq, auc=0.7, metrics=(MetricValue(name="mae", value=2.0),))
        message = EvaluationMeasured(
            job=spec.name, samples_done=seq, samples_done_after=seq + 1, evaluation=found, partition="b"
        )
        projection.apply(message, seq, float(seq))
    curve = projection.jobs[spec.name].learning
    assert len(curve) <= 500
    assert (curve[0].samples_done, curve[-1].samples_done, curve[-1].loss) == (2, 1499, 1 / 1499)
    assert (curve[-1].metrics, curve[-1].partition) == ((MetricValue(name="mae", value=2.0),), "b")
    assert [point.time_s for point in curve] == sorted(point.time_s for point in curve)


def test_a_word_is_taken_also_when_the_stream_keeps_the_last_one_no_more(own_gateway: Running) -> None:
    document = growing()
    name = document["name"]
    with own_gateway.http() as http:
        http.post("/jobs", json=document)
        assert http.post(f"/jobs/{name}/data", json={"partitions": [{"name": "b", "samples": 5}]}).status_code == 200
        own_gateway.age_out()
        for _ in range(2):
            told = http.post(f"/jobs/{name}/data", json={"close": True})
            assert (told.status_code, told.json()["growing"]) == (200, False), told.text

"""Every message that the registry routes to the dispatcher has a translation, there and back."""

from stretto_core import ledger
from stretto_dispatcher import handlers
from stretto_dispatcher.service import Dispatcher
from stretto_wire.registry import CHANNELS

SHARD = ledger.Shard(3, 2, 1, 640, 64, 32, 1)


def test_every_input_and_request_is_translated() -> None:
    heard = {entry.message for entry in Dispatcher.inputs} | set(Dispatcher.rpcs)
    assert heard == set(handlers._EVENTS)
    answered = {c.message for c in CHANNELS if c.kind == "rpc" and c.service == "dispatcher"}
    assert answered == set(Dispatcher.rpcs)


def test_every_fact_has_a_message_of_the_dispatcher() -> None:
    facts = [
        ledger.ShardLeased(SHARD, "worker-1"),
        ledger.ShardCompleted(SHARD, "worker-1"),
        ledger.ShardRequeued(SHARD, "worker-1", "pod-exited"),
        ledger.ShardAbandoned(SHARD, "x" * 5000),
        ledger.JobProgressed(5, 10, 0, 2.5, 1, 0),
        ledger.EvaluationMeasured(5, 7, 100, 0.6, 0.7),
        ledger.JobCompleted(10, 0, 1, 2, 0, 1.7e9),
    ]
    published = {c.message for c in CHANNELS if c.kind == "evt" and c.service == "dispatcher"}
    assert {type(handlers.to_message("job-1", fact)) for fact in facts} == published


def test_replies_keep_what_the_ledger_said() -> None:
    reply = handlers.to_message("job-1", ledger.NextReply("shard", SHARD, stale=True, forget=[1, 2]))
    assert reply.model_dump(mode="json") == {
        "job": "job-1",
        "answer": "shard",
        "shard": {
            "id": 3,
            "attempt": 2,
            "epoch": 1,
            "start": 640,
            "length": 64,
            "offset": 32,
            "partition": "",
            "kind": "train",
        },
        "wait_s": 0.0,
        "stale": True,
        "forget": [1, 2],
    }

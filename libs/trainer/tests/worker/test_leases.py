"""The leases of a worker against a ledger: what it holds, and of which parameter servers."""

import threading
from typing import Any

import pytest
from ledger_bus import LedgerBus
from stretto.worker.leases import Leases
from stretto_core.dispatcher.evaluating import HeldOut
from stretto_core.dispatcher.events import LedgerRestored
from stretto_messages.dispatcher import MarkLedger
from stretto_messages.values import PartialEvaluation


def made(**arguments: Any) -> tuple[LedgerBus, Leases]:
    bus = LedgerBus(**arguments)
    return bus, Leases(bus, threading.Event())  # type: ignore[arg-type]


def test_a_promised_shard_is_of_the_servers_of_the_question_that_reserved_it():
    """The servers may have been replaced since: what was leased before may not go into the new servers."""
    _, leases = made()
    leases.next(1)
    promised = leases.ahead
    assert leases.generation == 1
    leases.completed()
    leases.next(2)
    assert (leases.shard, leases.generation) == (promised, 1)
    leases.completed()
    leases.next(3)
    assert leases.generation == 2


def test_a_lease_that_is_asked_for_again_is_of_the_servers_of_that_question():
    _, leases = made()
    leases.next(1)
    shard = leases.shard
    leases.drop()
    leases.next(2)
    assert (leases.shard, leases.generation) == (shard, 2)


def test_a_promise_outlasts_an_evaluation_between():
    _, leases = made(held_out=HeldOut(samples=20, every=20, start=10_000))
    leases.next(1)
    promised = leases.ahead
    leases.completed()
    leases.next(2)
    assert (leases.shard.kind, leases.generation, leases.ahead) == ("evaluate", 2, promised)
    length = leases.shard.length
    found = PartialEvaluation(samples=length, loss_sum=1.0, positives=(length,), negatives=(0,))
    leases.completed(found)
    leases.next(3)
    assert (leases.shard, leases.generation) == (promised, 1)


def test_a_return_to_a_checkpoint_breaks_the_promise():
    bus, leases = made()
    leases.next(1)
    promised = leases.ahead
    bus.tell(LedgerRestored(bus.tell(MarkLedger(job="j", request_id="m")).book, "c1", 1))
    leases.completed()
    leases.next(2)
    assert leases.shard.attempt == promised.attempt + 1
    assert leases.generation == 2


@pytest.mark.parametrize("is_old", [False, True])
def test_every_sample_is_leased_once(is_old: bool):
    _, leases = made(is_old=is_old)
    samples: list[int] = []
    promised = None
    while True:
        leases.next(1)
        shard = leases.shard
        if shard is None:
            break
        assert promised in (None, shard)
        promised = leases.ahead
        assert not (is_old and promised)
        samples += range(shard.start, shard.start + shard.length)
        leases.completed()
    assert sorted(samples) == list(range(10_000))


def test_a_worker_that_leaves_holds_nothing():
    bus, leases = made()
    leases.next(1)
    leases.release(0)
    assert leases.ahead is None
    assert bus.ledger.state.leased() == 0
    leases._leaving.set()
    leases.next(1)
    assert leases.ahead is None
    assert not bus.asked[-1].ahead

"""The hostile pod's conversations and lies, without a bus: they change a ledger, and a seed brings the same again."""

from __future__ import annotations

import importlib
import json
import random
from itertools import islice
from typing import Any

from stretto_core.dispatcher.events import JobOpened
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec, LedgerError
from stretto_core.machine import Reply
from stretto_drills.chaos.hostile import (
    Answer,
    Sequence,
    document_for,
    job_beside,
    leases_released,
    lie,
    sequences,
    workers_invented,
)
from stretto_messages.base import Message
from stretto_messages.pods import GetOwnership
from stretto_wire.codec import decode, document_of
from stretto_wire.contract.registry import channel_of, partition_of
from stretto_wire.jobspec.spec import JobSpec

JOB, VICTIM = "hostile", "victim"


def opened() -> ShardLedger:
    ledger = ShardLedger()
    ledger.handle(JobOpened(JOB, DataSpec(10**9, 512, 16, True, 1, False, "x"), 1), 1000.0)
    return ledger


def converse(sequence: Sequence, ledger: ShardLedger) -> int:
    """Let a ledger answer a sequence to its end; returns how many requests it had."""
    count, answers = 0, list[Answer]()
    requests = next(sequence)
    while True:
        for request in requests:
            message: Any = decode(request.message, json.dumps({"job": JOB, **request.fields}).encode())
            try:
                replies = [one.body for one in ledger.handle(message, 1000.0) if isinstance(one, Reply)]
            except LedgerError:  # a refusal
                replies = []
            answers += [document_of(reply) for reply in replies if isinstance(reply, Message)]
        count += len(requests)
        try:
            requests = sequence.send(answers)
        except StopIteration:
            return count
        answers = []


def test_invented_workers_are_all_different_and_stay_in_the_ledger() -> None:
    ledger = opened()
    assert converse(workers_invented(random.Random(1), 120), ledger) == 120
    assert len(ledger.state.workers) == 120


def test_a_lease_that_is_answered_is_given_back_until_the_ledger_refuses_it() -> None:
    ledger = opened()
    assert converse(leases_released(random.Random(1), 50), ledger) == 100
    assert ledger.state.leased() == 1
    assert 0 < ledger.state.requeued_total < 50


def test_a_seed_brings_the_same_first_requests() -> None:
    first, again = ([next(one) for one in islice(sequences(random.Random(7)), 20)] for _ in range(2))
    assert first == again


def test_lies_are_silence_sound_answers_and_others() -> None:
    dice = random.Random(7)
    drawn = [lie(dice, channel_of(GetOwnership), JOB, VICTIM) for _ in range(100)]
    bodies = [one[0] for one in drawn if one is not None]
    assert 0 < len(bodies) < 100
    assert 10 < sum(body.startswith(b'{"job": "hostile"') for body in bodies) < len(bodies)


def test_the_hostile_job_is_beside_its_victim_and_its_code_is_there() -> None:
    job = job_beside(VICTIM, "hostile-3-0123abcd")
    assert partition_of(job) == partition_of(VICTIM)
    module, _, name = JobSpec.parse(document_for(job)).model.entry.partition(":")
    assert hasattr(importlib.import_module(module), name)

"""A connection leaves a server only if JetStream has failed for some time."""

from __future__ import annotations

import pytest
from stretto_bus.faults import BusFault
from stretto_bus.majority import LEAVE_AFTER_S, Majority

SUBJECT = "evt.v1.gateway.job-cancelled.a"
NO_ANSWER = BusFault("no answer in time")


@pytest.fixture
def majority() -> Majority:
    return Majority()


def fail(majority: Majority, *times_s: float, fault: BusFault = NO_ANSWER) -> None:
    for sent_s in times_s:
        majority.failed(sent_s, fault)


def test_requests_that_fail_for_long_enough_mean_that_the_majority_is_lost(majority: Majority) -> None:
    fail(majority, 100.0, 103.0, 106.0)
    assert not majority.lost(100.0 + LEAVE_AFTER_S)
    assert majority.lost(100.1 + LEAVE_AFTER_S)
    majority.forget()
    assert not majority.lost(200.0)


def test_one_failed_request_proves_nothing_nor_do_several_at_one_moment(majority: Majority) -> None:
    fail(majority, 100.0, 100.0, 101.0)
    assert not majority.lost(200.0)


def test_failures_far_apart_do_not_add_up(majority: Majority) -> None:
    fail(majority, 100.0, 106.0, 107.0 + LEAVE_AFTER_S)
    assert not majority.lost(108.0 + LEAVE_AFTER_S)


def test_a_stored_message_proves_a_majority_and_information_does_not(majority: Majority) -> None:
    fail(majority, 100.0, 106.0)
    majority.done("$JS.API.STREAM.INFO.STRETTO")
    assert majority.lost(111.0)
    majority.done(SUBJECT)
    assert not majority.lost(111.0)


def test_a_fault_that_blames_the_request_says_nothing_about_the_majority(majority: Majority) -> None:
    fail(majority, 100.0, 106.0, fault=BusFault("no such consumer", 10014))
    assert not majority.lost(111.0)

"""The bus heals by itself: when a server that cannot store is restarted, and what is said meanwhile."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_installation.one_machine.bus_health import (
    NO_BYTES,
    NO_DESCRIPTORS,
    PAUSE_FIRST_S,
    PAUSE_MOST_S,
    ROOM_BYTES,
    ROOM_DESCRIPTORS,
    Healer,
    Look,
    write_error,
)

SOUND = Look("", NO_BYTES, NO_DESCRIPTORS)
FAILED = Look("no space left on device", ROOM_BYTES, ROOM_DESCRIPTORS)
looks = st.lists(
    st.sampled_from([SOUND, FAILED, Look("x", ROOM_BYTES - 1, 999), Look("x", 1 << 40, ROOM_DESCRIPTORS - 1)]),
    max_size=200,
)


@given(looks)
def test_a_server_is_restarted_only_for_a_failed_write_with_room_and_not_at_once_again(script: list[Look]) -> None:
    healer, restarted = Healer(), list[float]()
    for now, look in enumerate(script):
        verdict = healer.judge(look, float(now))
        assert bool(verdict.why) == bool(look.error)
        if verdict.restart:
            assert look == FAILED
            assert all(now - at >= PAUSE_FIRST_S for at in restarted)
            restarted.append(now)


def test_pauses_grow_while_restarts_do_not_help_and_are_short_again_afterwards() -> None:
    healer, restarts, now = Healer(), list[float](), 0.0
    for _ in range(2000):
        now += 1.0
        if healer.judge(FAILED, now).restart:
            restarts.append(now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(restarts)]
    assert pauses[0] == PAUSE_FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MOST_S
    for _ in range(200):
        now += 1.0
        healer.judge(SOUND, now)
    first = next(at for at in range(100) if healer.judge(FAILED, now + at).restart)
    second = next(at for at in range(first + 1, 100) if healer.judge(FAILED, now + at).restart)
    assert (first, second) == (0, PAUSE_FIRST_S)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (Look("x", 3 << 20, 999), "its disk is full (3 MiB free): make room"),
        (Look("x", 1 << 40, 3), "no file descriptors left"),
        (Look("", 1 << 40, 3), "no file descriptors left"),
        (Look("", 0, 999), "its disk is full (0 B free)"),
        (FAILED, "no space left on device), and is being restarted"),
    ],
)
def test_what_is_missing_is_said_in_plain_words(look: Look, words: str) -> None:
    assert words in Healer().judge(look, 100.0).why


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"data": {"status": "ok"}}, ""),
        ({"data": {"error": "JetStream stream 'A > B' write error: open 1.blk: too many open files"}},
         "open 1.blk: too many open files"),
        ({"data": {"errors": [{"error": "stream 'B' is not current"}, {"error": "stream 'B' write error: no space"}]}},
         "no space"),
        ({"data": {"error": "JetStream stream 'A > B' is not current"}}, ""),
        ([], ""),
    ],
)  # fmt: skip
def test_only_a_failed_write_counts_of_a_servers_answer(answer: object, error: str) -> None:
    assert write_error(json.dumps(answer).encode()) == error

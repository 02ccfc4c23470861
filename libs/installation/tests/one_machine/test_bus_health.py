"""The bus heals by itself: when a server that cannot store is restarted, and what is said meanwhile."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_installation.one_machine.bus_health import (
    GIVE_UP_S,
    NO_BYTES,
    NO_DESCRIPTORS,
    PAUSE_FIRST_S,
    PAUSE_MOST_S,
    PLENTY_BYTES,
    PLENTY_FILES,
    RESERVE_FILE_BYTES,
    RESERVE_FILES,
    ROOM_BYTES,
    ROOM_DESCRIPTORS,
    ROOM_FILES,
    Healer,
    Look,
    Reserve,
    write_error,
)

SOUND = Look("", NO_BYTES, NO_DESCRIPTORS, has_reserve=True)
FAILED = Look("no space left on device", ROOM_BYTES, ROOM_DESCRIPTORS, has_reserve=True)
looks = st.lists(
    st.sampled_from([SOUND, FAILED, Look("x", ROOM_BYTES - 1, 999), Look("x", 1 << 40, ROOM_DESCRIPTORS - 1)]),
    max_size=200,
)


@given(looks)
def test_a_server_is_restarted_only_for_a_failed_write_with_room_and_not_at_once_again(script: list[Look]) -> None:
    healer, restarted = Healer(), list[float]()
    for now, look in enumerate(script):
        verdict = healer.judge(look, float(now))
        assert bool(verdict.why) == bool(look.error) != verdict.stores
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
        (Look("x", 1 << 40, 999, ROOM_FILES - 1), "its disk is full (1 TiB, 99 files free)"),
        (Look("", PLENTY_BYTES - 1, 999), "the disk is nearly full (256 MiB free): the bus stores"),
        (FAILED, "no space left on device), and is being restarted"),
    ],
)
def test_what_is_missing_is_said_in_plain_words(look: Look, words: str) -> None:
    assert words in Healer().judge(look, 100.0).why


def test_the_reserve_is_given_up_when_nobody_makes_room_and_taken_once_there_is_plenty() -> None:
    healer, full = Healer(), Look("no space", 0, 999, has_reserve=True)
    assert [at for at in range(15) if healer.judge(full, at).give_up] == [*range(int(GIVE_UP_S), 15)]
    reserve = float(RESERVE_FILES * RESERVE_FILE_BYTES)
    spent = Look("no space", reserve, 999, RESERVE_FILES)
    assert healer.judge(spent, 15.0).restart, "what was the reserve is room enough"
    assert not healer.judge(replace(spent, error=""), 20.0).take
    assert healer.judge(Look("", PLENTY_BYTES, 999, PLENTY_FILES), 21.0).take
    assert not healer.judge(Look("", PLENTY_BYTES, 999, PLENTY_FILES, has_reserve=True), 22.0).take
    assert not healer.judge(full, 30.0).give_up, "room lacks anew"


def test_the_reserve_has_its_blocks_and_goes_at_once(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    assert reserve.size_bytes == 0
    reserve.take()
    blocks = [file.stat().st_blocks for file in (tmp_path / "reserve").iterdir()]
    assert (len(blocks), sum(blocks) * 512) == (RESERVE_FILES, reserve.size_bytes)
    reserve.give_up()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"data": {"status": "ok"}}, ""),
        ({"data": {"error": "JetStream stream 'A > B' write error: open 1.blk: too many open files"}},
         "open 1.blk: too many open files"),
        ({"data": {"errors": [{"error": "stream 'B' is not current"}, {"error": "stream 'B' write error: no space"}]}},
         "no space"),
        ({"data": {"errors": [{"error": "JetStream not enabled (10076)"}]}}, "JetStream not enabled"),
        ({"data": {"error": "JetStream stream 'A > B' is not current"}}, ""),
        ([], ""),
    ],
)  # fmt: skip
def test_only_a_failed_write_counts_of_a_servers_answer(answer: object, error: str) -> None:
    assert write_error(json.dumps(answer).encode()) == error

"""The lock of a store: readers share it, a writer is alone, and nobody is shut out."""

import threading
import time

import numpy as np
import pytest
from stretto.engine import one_table
from stretto.engine.turns import SharedLock, Turn
from stretto.errors import ServerEmptied

PATIENCE_S = 60
LAYOUT = one_table(4, 50, seed=3)


def begun(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_readers_are_inside_together_and_a_writer_waits_for_the_last():
    turn, together, leave, seen = Turn(SharedLock()), threading.Barrier(3), threading.Event(), []

    def read():
        with turn.shared():
            together.wait(PATIENCE_S)
            leave.wait(PATIENCE_S)
            seen.append("read")

    def write():
        with turn.alone():
            seen.append("written")

    readers = [begun(read), begun(read)]
    together.wait(PATIENCE_S)  # raises unless both are inside at once
    writer = begun(write)
    writer.join(0.05)
    assert seen == []
    leave.set()
    for thread in (*readers, writer):
        thread.join(PATIENCE_S)
    assert seen == ["read", "read", "written"]
    assert not turn.lock._free.locked()


def test_readers_that_keep_coming_do_not_shut_a_writer_out():
    turn, written = Turn(SharedLock()), threading.Event()

    def read():
        while not written.is_set():
            with turn.shared():
                time.sleep(0.001)

    readers = [begun(read) for _ in range(4)]
    with turn.alone():
        written.set()
    for thread in readers:
        thread.join(PATIENCE_S)
    assert not turn.lock._free.locked()


def test_no_update_is_lost_or_seen_half_done():
    turn, pair, torn = Turn(SharedLock()), [0, 0], []

    def write():
        for _ in range(300):
            with turn.alone():
                pair[0] += 1
                time.sleep(0)
                pair[1] += 1

    def read():
        for _ in range(300):
            with turn.shared():
                torn.append(pair[0] != pair[1])

    threads = [begun(work) for work in (write, write, write, read, read, read)]
    for thread in threads:
        thread.join(60)
    assert pair == [900, 900]
    assert not any(torn)


def test_a_reader_that_changes_something_first_is_alone_for_that_and_lets_others_in_after_it():
    turn, changing, change, other = Turn(SharedLock()), threading.Event(), threading.Event(), threading.Event()
    state = []

    def first():
        changing.set()
        change.wait(PATIENCE_S)
        state.append("changed")

    def change_and_read():
        with turn.shared(first):
            other.wait(PATIENCE_S)
            state.append("read")

    def read():
        with turn.shared():
            state.append("other")
            other.set()

    def write():
        with turn.alone():
            state.append("written")

    threads = [begun(change_and_read)]
    changing.wait(PATIENCE_S)
    threads.append(begun(read))
    threads[-1].join(0.05)
    assert state == []
    change.set()
    other.wait(PATIENCE_S)
    threads.append(begun(write))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert state == ["changed", "other", "read", "written"]
    assert not turn.lock._free.locked()


@pytest.mark.parametrize("first", [None, lambda: 1 / 0])
@pytest.mark.parametrize("kind", ["alone", "shared"])
def test_a_change_that_fails_leaves_the_lock_free(kind, first):
    turn = Turn(SharedLock())
    with pytest.raises(ZeroDivisionError), getattr(turn, kind)(first):
        raise ZeroDivisionError
    assert not turn.lock._free.locked()
    assert not turn.lock._door.locked()


@pytest.mark.parametrize("kind", ["alone", "shared"])
def test_whoever_waited_while_the_life_ended_is_refused_and_leaves_the_lock_free(kind):
    turn, refused = Turn(SharedLock()), []

    def late():
        try:
            with getattr(turn, kind)():
                pass
        except ServerEmptied as error:
            refused.append(error)

    with turn.alone():
        thread = begun(late)
        thread.join(0.05)
        turn.end()
    thread.join(PATIENCE_S)
    assert len(refused) == 1
    assert not turn.lock._free.locked()


def test_a_pull_is_answered_while_a_copy_holds_the_store_and_a_push_is_not(cluster_here):
    servers = cluster_here(LAYOUT, 1)
    worker, other = servers.worker(), servers.worker()
    keys = LAYOUT.index(np.arange(10))
    done = threading.Event()

    def push():
        other.push(keys, [np.ones((10, 4), np.float32)], np.ones(50, np.float32), shard=0, attempt=1, start=0, stop=10)
        done.set()

    with servers.processes[0].store.turn.shared():
        worker.pull(keys)
        pushing = begun(push)
        assert not done.wait(0.1)
    pushing.join(PATIENCE_S)
    assert done.is_set()
    assert servers.processes[0].store.applied().samples.tolist() == [10] * LAYOUT.columns

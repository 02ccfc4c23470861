"""A trainer's list of data workers, which it asks for their lanes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from stretto.batches.feed import DataWorkerList, Feed
from stretto.batches.preparation import Kind
from stretto.engine.link import Access
from stretto.model.form import reading_of_json
from stretto.model.reading import Reading, RowsReading
from stretto_plane import Key, Listener, Message, Peer
from trainer_harness import wait_for

ROWS = RowsReading({"rows": 3}, {}, has_own_loss=True)


@pytest.mark.parametrize("reading", [None, ROWS])
def test_only_data_workers_that_import_a_framework_start_one_after_the_other(
    reading: Reading | None, tmp_path: Path
) -> None:
    asked: list[str] = []
    served = threading.Event()
    used: list[tuple[str, ...]] = []

    def data_worker(name: str) -> Listener:
        def answer(message: Message, peer: Peer) -> tuple[int, list[bytes]]:
            assert reading_of_json(bytes(message.parts[0])) == reading
            asked.append(name)
            return Kind.LANES, [json.dumps([f"lane of {name}"] if served.wait(0.01) else []).encode()]

        return Listener(f"unix:{tmp_path}/{name}", answer, access.key, size_bytes_max=1000)

    access = Access(Key.random())
    of_feed = {"reading": reading, "set_by_build": (), "use": lambda lanes, *_: used.append(tuple(lanes))}
    feed = cast("Feed", SimpleNamespace(**of_feed))
    with data_worker("data-0") as first, data_worker("data-1") as second:
        workers = DataWorkerList(feed, access, cast("Any", {}))
        workers.use((first.address, second.address))
        wait_for(lambda: len(asked) > 20 and (reading is None or len({*asked}) == 2))
        assert len({*asked}) == (1 if reading is None else 2)
        served.set()
        wait_for(lambda: used[-1] == ("lane of data-0", "lane of data-1"))
        workers.use(())

"""Every example on every kind of data: with lanes, the parameters are those of training alone, to the last bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stretto.batches.feed import Feed
from stretto.batches.preparation import fingerprint_of
from stretto.build import make_program, options_of
from stretto.data_worker.lane_pool import LanePool
from stretto.engine.link import Access
from stretto.model.entry_point import changes_of, load, state_of
from stretto.readers.criteo import CATEGORIES, INTEGERS
from stretto.readers.synthetic import Synthetic
from stretto.trial.local import Here
from stretto_plane import Key
from stretto_wire.jobspec.spec import JobSpec
from trainer_harness import spec_of, wait_for

BATCH, BATCHES = 256, 40
SAMPLES = BATCH * BATCHES
MODELS = ("wide_deep:WideDeep", "dcn:DCN", "xdeepfm:XDeepFM")


STATEFUL = """\
import keras, numpy as np
from types import SimpleNamespace

SHIFTS = {}


class Clicks:
    shift = 0
    ready = [1]

    def __init__(self):
        self.kept, self.of = [1, 2], SimpleNamespace(by=1)

    def build(self):
        self.shift, self.added = 3, SimpleNamespace(inner=4)
        self.kept.append(3)
        self.of.by = 2
        type(self).ready = [1]
        SHIFTS[0] = 5
        rows = keras.Input((1, 8), name="rows")
        return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    def read(self, start, length):
        number = np.arange(start, start + length) + self.shift + len(self.kept) + SHIFTS.get(0, 0) + self.of.by
        return {"label": number % 2, "categorical": number[:, None] % 7}
"""


def generated(folder: Path) -> dict[str, Any]:
    return {"categories": 2000}


def criteo_text(folder: Path) -> dict[str, Any]:
    raw = Synthetic(5, categories=2000).raw(0, SAMPLES)
    with (folder / "criteo.txt").open("w") as file:
        for label, integers, gone, codes, empty in zip(
            raw.label, raw.integers, raw.integers_missing, raw.codes, raw.codes_missing, strict=True
        ):
            numbers = ["" if lost else str(value) for value, lost in zip(integers, gone, strict=True)]
            words = ["" if lost else f"{code:08x}" for code, lost in zip(codes, empty, strict=True)]
            file.write("\t".join([str(int(label)), *numbers, *words]) + "\n")
    return {"data": str(folder / "criteo.txt")}


def parquet_strings(folder: Path) -> dict[str, Any]:
    raw = Synthetic(5, categories=2000).raw(0, SAMPLES)
    columns: dict[str, Any] = {"label": pa.array(raw.label)}
    for i, name in enumerate(INTEGERS):
        columns[name] = pa.array(raw.integers[:, i], mask=raw.integers_missing[:, i])
    for i, name in enumerate(CATEGORIES):
        words = [f"{code:08x}" for code in raw.codes[:, i].astype(np.int64).tolist()]
        columns[name] = pa.array(words, mask=raw.codes_missing[:, i])
    pq.write_table(pa.table(columns), folder / "strings.parquet", row_group_size=3000)
    return {"data": str(folder / "strings.parquet")}


def checksum(spec: JobSpec, access: Access, addresses: tuple[str, ...]) -> tuple[int, Feed]:
    """Train without a pipeline, for which alone a run can be repeated; return the checksum of all parameters.

    Keras numbers layers from one again, as in a new process: under other names, DCN's second run differs from its first
    in the last bits.
    """
    keras.utils.clear_session()
    program = make_program(load(spec.model), options_of(spec))
    feed = Feed(program)
    with Here(program, BATCH, pipeline=False, feed=feed) as here:
        if addresses:
            feed.use(addresses, access, fingerprint_of(spec.model_dump(mode="json"), program.task))
        here.train(0, SAMPLES)
        return here.server.store.checksum(), feed


@pytest.mark.slow
@pytest.mark.parametrize("data", [generated, criteo_text, parquet_strings])
@pytest.mark.parametrize("model", [MODELS[0], *(pytest.param(model, marks=pytest.mark.night) for model in MODELS[1:])])
def test_lanes_change_no_bit(model: str, data: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    arguments = {"seed": 5, "hidden": "16", **data(tmp_path)}
    spec = spec_of(SAMPLES, model={"entry": f"stretto.examples.{model}", "arguments": arguments})
    access = Access(Key.random())
    alone, feed = checksum(spec, access, ())
    lanes = LanePool(spec, 2, lambda number: f"unix:{tmp_path}/lane-{number}.sock", access, feed.reading)
    with contextlib.closing(lanes):
        wait_for(lambda: len(lanes.addresses) == 2)
        with_lanes, feed = checksum(spec, access, lanes.addresses)
    assert with_lanes == alone
    assert feed.counts.from_lanes
    assert not feed.differing


@pytest.mark.slow
def test_lanes_have_what_build_leaves_for_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stateful.py").write_text(STATEFUL)
    monkeypatch.syspath_prepend(tmp_path)
    spec = spec_of(SAMPLES, model={"entry": "stateful:Clicks", "arguments": {}})
    task = load(spec.model)
    before = state_of(task)
    assert changes_of(before, task) == ()
    task.build()
    left = ("self.kept", "self.shift", "self.added", "Clicks.ready", "stateful.SHIFTS", "self.of.by")
    assert changes_of(before, task) == left
    access = Access(Key.random())
    alone, feed = checksum(spec, access, ())
    with contextlib.closing(LanePool(spec, 1, lambda _: f"unix:{tmp_path}/lane", access, feed.reading)) as lanes:
        wait_for(lambda: len(lanes.addresses) == 1)
        with_lanes, feed = checksum(spec, access, lanes.addresses)
    assert with_lanes == alone
    assert feed.counts.from_lanes
    assert not feed.differing

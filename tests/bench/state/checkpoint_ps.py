"""One parameter server of the checkpoint benchmark: a JSON command per line in, a JSON answer per line out."""

import json
import time
from pathlib import Path

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from stretto.engine import Key, Layout, ParameterServer
from stretto.server.flash_checkpoint import Exports
from stretto_parameters import RawBucket

from tests.bench.processes import answer

COPIED_BYTES = 2**28
SLOW_BYTES_PER_S = 100e6


class SlowStore(LocalFileSystem):
    """A stand-in for a remote store: files of this disk at a limited rate."""

    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("slow://") if isinstance(path, str) else path)

    def cat_file(self, path, start=None, end=None, **options):
        begun = time.perf_counter()
        data = super().cat_file(path, start, end, **options)
        return throttled(data, begun)

    def _open(self, path, mode="rb", **options):
        file = super()._open(path, mode, **options)
        write = file.write
        file.write = lambda data: (throttled(data, time.perf_counter()), write(data))[1]
        return file


def throttled(data, begun):
    time.sleep(max(0.0, len(data) / SLOW_BYTES_PER_S - (time.perf_counter() - begun)))
    return data


fsspec.register_implementation("slow", SlowStore)


def start(state, index, layout, folder, key=None):
    state["layout"] = Layout.from_dict(layout)
    state["ps"] = ps = ParameterServer(index, state["layout"], key=Key.of(key.encode()) if key else None)
    state["exports"] = Exports("bench", f"ps-{index}", ps.store, pod_folder=Path(folder))
    return {"address": ps.address}


def fill(state, columns, rows):
    """Insert ``rows`` rows into each bucket of ``columns``."""
    ps, layout = state["ps"], state["layout"]
    random = np.random.default_rng(ps.index)
    ps.own(columns)
    low = 2**64 // layout.buckets
    for column in (c for c in columns if c < layout.buckets):
        keys = np.unique(random.integers(0, low, rows, np.uint64)) + np.uint64(column * low)
        values = random.random((len(keys), 2 * layout.tables[0].dimension), np.float32)
        ps.store.import_bucket(column, [RawBucket(keys, values)])
    return {"rows": ps.store.categories(), "room": state["exports"].room_bytes()}


def fill_ids(state, columns, rows):
    """Insert a row for each of the ids 0..rows whose bucket is in ``columns``."""
    ps, layout = state["ps"], state["layout"]
    random = np.random.default_rng(ps.index)
    ps.own(columns)
    keys = layout.index(np.arange(rows)).tables[0]
    ends = np.cumsum(keys.counts)
    for column in (c for c in columns if c < layout.buckets):
        stored = keys.stored[ends[column] - keys.counts[column] : ends[column]]
        values = random.random((len(stored), 2 * layout.tables[0].dimension), np.float32)
        ps.store.import_bucket(column, [RawBucket(stored, values)])
    return {"rows": ps.store.categories()}


def room(state, base):
    return {"room": state["exports"].room_bytes(base)}


def save(state, name, store, memory, base=""):
    begun, cpu_s = time.perf_counter(), time.process_time()
    export = state["exports"].begin(name, "", store, memory, base)
    saved_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
    while (status := state["exports"].status(name))[0] not in ("stored", "failed"):
        time.sleep(0.005)
    if status[0] == "failed":
        raise OSError(status[2])
    stored_s = time.perf_counter() - begun
    return {
        "bytes": export.part.size_bytes,
        "memory": export.memory is not None,
        "saved_s": saved_s,
        "cpu_s": cpu_s,
        "stored_s": stored_s,
        "pause_s": export.pause_s,
        "part": json.loads(status[1]),
    }


def load(state, manifest, columns):
    begun, cpu_s = time.perf_counter(), time.process_time()
    size = state["exports"].load(manifest, columns)
    return {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu_s, "bytes": size}


def checksum(state):
    return {"checksum": state["ps"].store.checksum(), "rows": state["ps"].store.categories()}


def copy(state, new=False):
    """Measure the seconds that this process takes to copy COPIED_BYTES between two touched arrays, or to a new one."""
    source, target = state.setdefault("arrays", (np.ones(COPIED_BYTES // 8), np.ones(COPIED_BYTES // 8)))
    begun = time.perf_counter()
    np.copyto(np.empty_like(target) if new else target, source)
    return {"seconds": time.perf_counter() - begun, "bytes": COPIED_BYTES}


COMMANDS = {function.__name__: function for function in (start, fill, fill_ids, room, save, load, checksum, copy)}


answer(COMMANDS)

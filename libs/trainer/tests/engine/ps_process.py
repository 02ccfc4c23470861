"""A parameter-server process for tests and benchmarks: one JSON command per line in, one JSON answer per line out."""

import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path

from stretto.engine import Key, ParameterServer, Spill, export_image, load_image, move
from stretto.errors import StrettoError
from stretto.server.image_file import ImageWriter, Part, open_image


def start(state, index, key, address="127.0.0.1:0", encrypted=False, spill=None):
    """A fresh server, as a pod starts it: the first client tells the layout. spill: its folder, budget_bytes, warms."""
    if "ps" in state:
        state["ps"].close()
    state["spill"] = spill
    folder = spill and spill["folder"] and Path(spill["folder"])
    to = spill and Spill(folder, 2**40, lambda _: state["spill"]["budget_bytes"], warms=spill.get("warms", False))
    state["ps"] = ParameterServer(index, address=address, key=Key.of(key.encode()), encrypted=encrypted, spill=to)
    return {"address": state["ps"].address}


def tiers(state, budget_bytes=None, uncached=False):
    """Counters of the tiers, after another budget was set; uncached: from now on the disk has what is cold, alone."""
    if budget_bytes is not None:
        state["spill"]["budget_bytes"] = budget_bytes
    store = state["ps"].store.unlocked
    if uncached:
        threading.Thread(target=uncache, args=(store.tiers.logs,), daemon=True).start()
    counts = dataclasses.asdict(store.tiers.counts()) if store.tiers else {}
    rows, pulls = store.categories(), state["ps"].store.pulls
    names = "rows_pulled", "rows_read", "miss_ratios"
    told = zip(names, (pulls.rows, pulls.rows_read, pulls.miss_ratios(rows)), strict=True) if pulls else ()
    sizes = {"memory_bytes": store.memory_bytes(), "rows": rows, "row_bytes": store.row_bytes()}
    return {**counts, **dict(told), **sizes, "samples": state["ps"].store.applied().samples.tolist()}


def uncache(logs):
    while True:
        for log in logs:
            log.file.uncache()
        time.sleep(0.1)


def own(state, columns):
    state["ps"].own(columns)


def move_here(state, sources, addresses, limit=None, **more):
    steps = []
    begun = time.perf_counter()
    sources, addresses = ({int(c): s for c, s in given.items()} for given in (sources, addresses))
    for step in move(state["ps"], sources, addresses, **more):
        steps.append([len(step.columns), step.moved_bytes, step.frozen_seconds])
        if limit is not None and len(steps) >= limit:
            break
    return {"steps": steps, "seconds": time.perf_counter() - begun}


def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def save(state, path):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is counted from here
    begun, before = time.perf_counter(), peak_bytes()
    with open(path, "wb") as file:
        writer = ImageWriter(file)
        image = export_image(state["ps"].store, writer)
        size, digest = writer.finish(image.manifest)
    seconds = time.perf_counter() - begun
    part = Part(f"ps-{state['ps'].index}", os.path.basename(path), "", size, digest)
    with open(path + ".json", "w") as file:
        file.write(part.to_json())
    pause = image.pause_seconds
    return {"bytes": size, "seconds": seconds, "extra_bytes": peak_bytes() - before, "pause_seconds": pause}


def reader(path):
    def read(offset, length):
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)

    return read


def load(state, paths, columns):
    images = []
    for path in paths:
        with open(path + ".json") as part:
            images.append(open_image(Part.parse(part.read()), [(path, reader(path))]))
    load_image(state["ps"].store, images, columns)


COMMANDS = {"start": start, "own": own, "tiers": tiers, "move": move_here, "save": save, "load": load}


def main():
    state = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed stays out of the answers
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = COMMANDS[command.pop("do")](state, **command)
        except StrettoError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


main()

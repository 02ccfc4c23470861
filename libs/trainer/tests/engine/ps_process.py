"""A parameter-server process for tests and benchmarks: one JSON command per line in, one JSON answer per line out."""

import json
import os
import sys
import time

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

from stretto.engine import Layout, ParameterServer, PsImage, export_image, load_image, move
from stretto.errors import StrettoError


def start(state, index, layout, threads=0):
    state["ps"] = ParameterServer(index, Layout.from_dict(layout), threads=threads)
    return {"address": state["ps"].address}


def own(state, columns):
    state["ps"].own(columns)


def move_here(state, sources, addresses, limit=None):
    steps = []
    begun = time.perf_counter()
    for step in move(state["ps"], {int(c): s for c, s in sources.items()}, {int(s): a for s, a in addresses.items()}):
        steps.append([len(step.columns), step.moved_bytes, step.frozen_seconds])
        if limit is not None and len(steps) >= limit:
            break
    return {"steps": steps, "seconds": time.perf_counter() - begun}


def save(state, path):
    begun = time.perf_counter()
    image = export_image(state["ps"].control)
    seconds = time.perf_counter() - begun
    with open(path, "wb") as file:
        file.write(image.to_bytes())
    with open(path + ".json", "w") as file:
        json.dump(image.manifest, file)
    return {"bytes": image.nbytes, "seconds": seconds}


def load(state, paths, columns):
    images = []
    for path in paths:
        with open(path, "rb") as data, open(path + ".json") as manifest:
            images.append(PsImage.read(json.load(manifest), data.read()))
    load_image(state["ps"].control, images, columns)


COMMANDS = {"start": start, "own": own, "move": move_here, "save": save, "load": load}


def main():
    state = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever TensorFlow prints stays out of the answers
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

"""The program of Stretto's rows: trains what it is given and writes the journal. ``train.py ROOT JOURNALS LEVEL``."""

import json
import sys
import time
from pathlib import Path

import stretto.agent

root, journals, level = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, root)

from tests.bench.programs.loaders import counting  # noqa: E402 - found by now
from tests.bench.programs.loaders.schedule import CHECKPOINT_STEPS, SAMPLE_S  # noqa: E402

group, step = time.time_ns(), 0
origin: tuple[int, int] | None = None


def save(folder: str) -> None:
    Path(folder, "place.json").write_text(json.dumps([group, step]))


def load(folder: str) -> None:
    global origin
    saved_group, saved_step = json.loads(Path(folder, "place.json").read_text())
    origin = (saved_group, saved_step)


if level == 2:
    stretto.agent.restored(load)
with (journals / f"{group}-0.txt").open("ab", buffering=0) as journal:
    journal.write(counting.first_line(origin))
    for batch in stretto.agent.samples():
        time.sleep(len(batch) * SAMPLE_S)
        step += 1
        journal.write(counting.line(step, time.time(), batch))
        if level == 2 and step % CHECKPOINT_STEPS == 0:
            stretto.agent.checkpoint(save)
if level == 2 and step:
    stretto.agent.checkpoint(save)

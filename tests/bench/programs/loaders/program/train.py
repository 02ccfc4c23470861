"""The program of Stretto's rows: trains what it is given and writes the journal. ``train.py ROOT JOURNALS LEVEL``."""

import json
import os
import socket
import sys
import time
from pathlib import Path

import stretto.agent

root, journals, level = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, root)

from tests.bench.programs.loaders import counting  # noqa: E402 - found by now
from tests.bench.programs.loaders.schedule import CHECKPOINT_STEPS, SAMPLE_S  # noqa: E402

rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def agreed(number: int) -> int:
    """Return the number of rank 0, which all ranks of a group wait for, as ``init_process_group`` waits for all."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.create_server(address) as listening:
            for _ in range(ranks - 1):
                link, _ = listening.accept()
                with link:
                    link.sendall(str(number).encode())
        return number
    while True:
        try:
            with socket.create_connection(address) as link:
                if told := link.makefile().read():
                    return int(told)
        except OSError:  # rank 0 does not listen yet
            pass
        time.sleep(0.01)


group, step = time.time_ns(), 0
if ranks > 1:
    group = agreed(group)
origin: tuple[int, int] | None = None


def save(folder: str) -> None:
    Path(folder, "place.json").write_text(json.dumps([group, step]))


def load(folder: str) -> None:
    global origin
    saved_group, saved_step = json.loads(Path(folder, "place.json").read_text())
    origin = (saved_group, saved_step)


if level == 2:
    stretto.agent.restored(load)
with (journals / f"{group}-{rank}.txt").open("ab", buffering=0) as journal:
    journal.write(counting.first_line(origin))
    for batch in stretto.agent.samples():
        time.sleep(len(batch) * SAMPLE_S)
        step += 1
        journal.write(counting.line(step, time.time(), batch))
        if level == 2 and step % CHECKPOINT_STEPS == 0:
            stretto.agent.checkpoint(save)
if level == 2 and step:
    stretto.agent.checkpoint(save)

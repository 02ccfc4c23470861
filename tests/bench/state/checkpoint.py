"""A checkpoint of 1 GB to shared memory and back at the same number of servers; the same from the persistent store.

Rows have 200 bytes. Taking lasts from the reservation of the memory until the last server has its image there. The
first two images reserve memory, as those of a job do, and do not count. Later ones reuse the memory of the image before
the last, as in the checkpoints service. Reading happens in new processes, as after the loss of a server. It lasts until
all own their columns and could answer a pull, with every byte copied to their own tables and every checksum verified.
The counted bytes are those of the images, once in each direction. A copy in memory is that of as many processes at once
between arrays that were touched before, measured before each step. A new process cannot read at that rate: the
kernel zeroes its memory first. The same copy to memory that is new therefore stands in the note. TensorFlow's own
``Saver`` writes and reads variables of the same bytes on as many servers, without waiting for the disk. Before reading,
its files are written back and dropped from the page cache (``POSIX_FADV_DONTNEED``), since another machine would not
hold them.

python -m tests.bench.state.checkpoint
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from stretto.engine.layout import one_table
from stretto_checkpoints.memory import SharedMemory
from stretto_installation.one_machine.leftovers import claim_memory, free_memory, sweep_memory

from tests.bench.processes import Process, ask_all, first_columns
from tests.bench.rows import Row, row

SERVERS = 2
LAYOUT = one_table(24, 100_000)
ROWS = 78_600  # in each of 64 buckets: 1.0 GB
VARIABLES, SHAPE = 8, (1_310_000, 12)  # on each server: 0.5 GB
ANEW, ROUNDS, COPIES = 2, 5, 3
SLOW_BYTES_PER_S = 100e6
CHILD, SAVER = ("-m", "tests.bench.state.checkpoint_ps"), ("-m", "tests.bench.state.checkpoint_saver")


@dataclass
class Taken:
    """One checkpoint: seconds for the reservation, until it was in memory, and until it was in the store."""

    manifest: str
    images: list[Path]
    size_bytes: int
    reserve_s: float
    save_s: float
    stored_s: float
    pause_s: float


class Ours:
    """Parameter servers, each in a process, and their folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sweep_memory()  # a gigabyte, of a run that was killed
        self.memory = SharedMemory(claim_memory(folder), folder)
        self.columns = first_columns(range(SERVERS))
        self.servers = self.start()
        self.rooms = {
            f"ps-{i}": answer["room"] for i, answer in enumerate(self.all(do="fill", rows=ROWS, each="columns"))
        }
        self.checksum = self.sum()

    def start(self) -> list[Process]:
        servers = [Process(*CHILD) for _ in range(SERVERS)]
        for i, server in enumerate(servers):
            server.send(do="start", index=i, layout=LAYOUT.to_dict(), folder=str(self.folder))
        for server in servers:
            server.receive()
        return servers

    def all(self, each: str = "", **message: Any) -> list[Any]:
        for i, server in enumerate(self.servers):
            server.send(**message, **({each: self.columns[i]} if each else {}))
        return [server.receive() for server in self.servers]

    def sum(self) -> int:
        return sum(answer["checksum"] for answer in self.all(do="checksum")) % 2**64

    def save(self, name: str, store: str) -> Taken:
        touch_memory()
        begun = perf_counter()
        paths = self.memory.reserve("bench", name, self.rooms)
        reserved = perf_counter()
        for i, server in enumerate(self.servers):
            server.send(do="save", name=name, store=store, memory=paths[f"ps-{i}"])
        answers = [server.receive() for server in self.servers]
        assert all(answer["memory"] for answer in answers), "it has to be in shared memory"
        manifest = self.folder / name / "manifest.json"
        manifest.parent.mkdir(exist_ok=True)
        manifest.write_text(json.dumps({"parts": [answer["part"] for answer in answers]}))
        return Taken(
            f"{store}/manifest.json",
            [Path(path) for path in paths.values()],
            sum(answer["bytes"] for answer in answers),
            reserved - begun,
            reserved - begun + max(answer["saved_s"] for answer in answers),
            reserved - begun + max(answer["stored_s"] for answer in answers),
            max(answer["pause_s"] for answer in answers),
        )

    def load(self, manifest: str) -> float:
        """Return the seconds that new servers take until all have their part."""
        writers, self.servers = self.servers, self.start()
        try:
            touch_memory()
            seconds = max(answer["seconds"] for answer in self.all(do="load", manifest=manifest, each="columns"))
            assert self.sum() == self.checksum, "what was read is not what was saved"
            return seconds
        finally:
            self.kill()
            self.servers = writers

    def copied_bytes_per_s(self, new: bool = False) -> float:
        """Return what the servers copy in memory, all at once. new: to memory that was not touched before."""
        turns = [self.all(do="copy", new=new) for _ in range(COPIES)]
        return statistics.median(sum(a["bytes"] for a in turn) / max(a["seconds"] for a in turn) for turn in turns)

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


@contextmanager
def ours(folder: Path) -> Iterator[Ours]:
    made = Ours(folder)
    try:
        yield made
    finally:
        made.kill()
        free_memory(folder)


class Theirs:
    """TensorFlow servers, each with a Saver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = [Process(*SAVER) for _ in range(SERVERS)]
        for i in range(SERVERS):
            (folder / f"saver-{i}").mkdir()
        ask_all(self.servers, do="serve")
        made = ask_all(self.servers, do="make_variables", count=VARIABLES, shape=SHAPE)
        self.size_bytes = sum(answer["bytes"] for answer in made)

    def _each(self, do: str) -> float:
        for i, server in enumerate(self.servers):
            server.send(do=do, path=str(self.folder / f"saver-{i}" / "model"))
        return max(server.receive()["seconds"] for server in self.servers)

    def save(self) -> float:
        touch_memory()
        return self._each("saver_save")

    def load(self) -> float:
        touch_memory()
        for file in self.folder.glob("saver-*/*"):
            drop_from_cache(file)
        return self._each("saver_load")

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


def drop_from_cache(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def touch_memory(size_bytes: int = 3 * 10**9) -> None:
    """Touch free memory, so that neither side pays for its first touch.

    A virtual machine gets memory from its host at the first touch, and may have returned free memory (measured: 4 to
    45 us a page of 4 KiB).
    """
    import numpy as np

    np.zeros(size_bytes, np.uint8)[::4096] = 1


def run() -> list[Row]:
    """Measure both sides in turns; return the rows."""
    folder = Path(tempfile.mkdtemp(prefix="stretto-bench-"))
    try:
        theirs = Theirs(folder)
        try:
            with ours(folder) as mine:
                rounds = [measure(mine, theirs, number) for number in range(ANEW + ROUNDS)]
                # the store as it is here, its files not in the page cache; then one that is far away
                cold = persistent(mine, rounds[-1]["taken"], folder / f"c{ANEW + ROUNDS - 1}")
                slow = mine.save("slow", f"slow://{folder}/slow")
                slow_flash = mine.load(slow.manifest)
                slow_store = persistent(mine, slow, folder / "slow")
        finally:
            theirs.kill()
    finally:
        shutil.rmtree(folder)
    return rows(rounds, theirs.size_bytes, cold, (slow, slow_flash, slow_store))


def measure(mine: Ours, theirs: Theirs, number: int) -> dict[str, Any]:
    copies = [mine.copied_bytes_per_s()]
    taken = mine.save(f"c{number}", f"file://{mine.folder}/c{number}")
    copies.append(mine.copied_bytes_per_s())
    their_save_s = theirs.save()
    copies.append(mine.copied_bytes_per_s())
    load_s = mine.load(taken.manifest)
    copies.append(mine.copied_bytes_per_s())
    touch_memory()
    anew = mine.copied_bytes_per_s(new=True)
    their_load_s = theirs.load()
    mine.memory.free("bench", (f"c{number}",))
    return {
        **{"taken": taken, "load_s": load_s, "their_save_s": their_save_s, "their_load_s": their_load_s},
        "save_share": taken.size_bytes / taken.save_s / statistics.mean(copies[:2]),
        "load_share": taken.size_bytes / load_s / statistics.mean(copies[2:]),
        "copy": statistics.mean(copies) / 1e9,
        "copy_anew": anew / 1e9,
    }


def persistent(mine: Ours, taken: Taken, folder: Path) -> float:
    """Return the seconds to read a checkpoint from the store alone."""
    for image in taken.images:
        image.unlink()
    for file in folder.iterdir():
        drop_from_cache(file)
    return mine.load(taken.manifest)


def rows(rounds: list[dict[str, Any]], their_bytes: int, cold: float, slow: tuple[Taken, float, float]) -> list[Row]:
    anew, rounds = rounds[:ANEW], rounds[ANEW:]
    size = rounds[0]["taken"].size_bytes
    there_and_back = [(2 * size / 1e9) / (turn["taken"].save_s + turn["load_s"]) for turn in rounds]
    savers = [(2 * their_bytes / 1e9) / (turn["their_save_s"] + turn["their_load_s"]) for turn in rounds]
    rate, saver = statistics.median(there_and_back), statistics.median(savers)
    ratio = statistics.median(mine / theirs for mine, theirs in zip(there_and_back, savers, strict=True))

    def typical(get: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(get(turn) for turn in rounds)

    load_s = typical(lambda turn: turn["load_s"])
    what = f"checkpoint of {size / 1e9:.2f} GB to shared memory and back, {SERVERS} parameter servers"
    parts = (
        f"taken in {typical(lambda turn: turn['taken'].save_s):.2f} s "
        f"({typical(lambda turn: turn['taken'].reserve_s):.2f} of it to reserve the memory; the first two of a job in "
        f"{max(turn['taken'].save_s for turn in anew):.2f} s), read in {load_s:.2f} s; a push waits "
        f"{1e3 * max(turn['taken'].pause_s for turn in (*anew, *rounds)):.0f} ms at most; Saver: written in "
        f"{typical(lambda turn: turn['their_save_s']):.2f} s, read cold in "
        f"{typical(lambda turn: turn['their_load_s']):.2f} s"
    )
    far, far_flash_s, far_store_s = slow
    save_share, load_share, copy, copy_anew = (
        typical(lambda turn, name=name: turn[name]) for name in ("save_share", "load_share", "copy", "copy_anew")
    )
    copied = f"what {SERVERS} processes at once copy between NumPy arrays, before and after; the median of the ratios"
    throttle = f"a store of {SLOW_BYTES_PER_S / 1e6:.0f} MB/s per server (declared throttle)"
    return [
        row(what, rate, "GB/s", ">= 2.0", ratio >= 2.0, parts, saver, ratio),
        row("… taken, beside a copy in memory", size / 1e9 / typical(lambda turn: turn["taken"].save_s), "GB/s",
            ">= 0.5", save_share >= 0.5, copied, copy, save_share),
        row("… read and verified, beside a copy in memory", size / 1e9 / load_s, "GB/s", ">= 0.3", load_share >= 0.3,
            f"{copied}; to memory that is new they copy {copy_anew:.1f} GB/s", copy, load_share),
        row("return to a checkpoint, flash beside persistent", load_s, "s", "", None,
            "the store on this disk, nothing in the page cache", cold, cold / load_s),
        row("… and the store far away", far_flash_s, "s", "", None, throttle, far_store_s,
            far_store_s / far_flash_s),
        row("checkpoint taken, flash beside persistent, store far away", far.save_s, "s", "", None,
            f"{throttle}; training goes on all the time with flash", far.stored_s, far.stored_s / far.save_s),
    ]  # fmt: skip


if __name__ == "__main__":
    json.dump(run(), sys.stdout, indent=1)

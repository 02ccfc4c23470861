"""The whole embedded control plane at rest: time until ready, memory, processor, and of a command that asks it."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.bench.rows import Row, row_at_most

COMMAND = str(Path(sys.executable).with_name("stretto"))
SETTLE_S = 5.0
WATCHED_S = 20.0
READY_BAR_S = 6.0
MEMORY_BAR_MIB = 500.0
CPU_BAR_PERCENT = 5.0
ANSWER_BAR_S = 0.4
ANSWERS = 7
MIB = 2**20


def run() -> list[Row]:
    """Return rows for readiness, memory and processor of everything that `stretto up` starts, and for a command."""
    folder = Path(tempfile.mkdtemp(prefix="stretto-idle-"))
    try:
        return _measure(folder)
    finally:
        subprocess.run([COMMAND, "down", "--folder", str(folder)], capture_output=True, timeout=60, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _measure(folder: Path) -> list[Row]:
    begin = time.perf_counter()
    up = [COMMAND, "up", "--detach", "--folder", str(folder)]
    with (folder / "up.log").open("w+") as log:  # no pipe: a process left running would hold its end open
        status = subprocess.run(up, stdout=log, stderr=log, timeout=120, check=False).returncode
    ready_s = time.perf_counter() - begin
    busy_s = _cpu_s(processes_of(folder))
    load = os.getloadavg()[0]
    if status:
        raise RuntimeError(f"{' '.join(up)} ended with {status}: {(folder / 'up.log').read_text()[-2000:]}")
    time.sleep(SETTLE_S)
    processes = processes_of(folder)
    if not processes:
        raise RuntimeError(f"nothing runs in {folder} after `stretto up`")
    pss_mib, rss_mib = (sum(each) / MIB for each in zip(*map(_memory_bytes, processes), strict=True))
    before = _cpu_s(processes)
    watched = time.perf_counter()
    time.sleep(WATCHED_S)
    percent = 100 * (_cpu_s(processes) - before) / (time.perf_counter() - watched)
    names = f"{len(processes)} processes"
    answer_s = sorted(_answer_s(folder) for _ in range(ANSWERS))
    return [
        row_at_most("control plane, ready", ready_s, "s", READY_BAR_S, f"{busy_s:.1f} s of CPU; load {load:.0f}"),
        row_at_most(
            "control plane, resident", rss_mib, "MiB", MEMORY_BAR_MIB, f"RSS of {names}; PSS {pss_mib:.0f} MiB"
        ),
        # what the machine has less of: services are forks of one process, and RSS counts their common pages in each
        row_at_most("control plane, memory in all", pss_mib, "MiB", MEMORY_BAR_MIB, f"PSS of {names}"),
        row_at_most(
            "control plane, idle CPU", percent, "% of a core", CPU_BAR_PERCENT, f"{names} over {WATCHED_S:.0f} s"
        ),
        row_at_most(
            "stretto jobs, answered",
            statistics.median(answer_s),
            "s",
            ANSWER_BAR_S,
            f"of {ANSWERS}, from {answer_s[0]:.2f} to {answer_s[-1]:.2f} s; load {load:.0f}",
        ),
    ]


def _answer_s(folder: Path) -> float:
    begin = time.perf_counter()
    subprocess.run([COMMAND, "jobs", "--folder", str(folder)], capture_output=True, timeout=60, check=True)
    return time.perf_counter() - begin


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command line or environment names the folder, and their children."""
    own = psutil.Process().pid
    named = [each for each in psutil.process_iter() if each.pid != own and _names(each, str(folder))]
    return list({each.pid: each for root in named for each in (root, *root.children(recursive=True))}.values())


def _names(process: psutil.Process, folder: str) -> bool:
    try:
        return any(folder in text for text in (*process.cmdline(), *process.environ().values()))
    except psutil.Error:
        return False


def _memory_bytes(process: psutil.Process) -> tuple[int, int]:
    """Return PSS, which counts shared pages once over all sharers, and RSS."""
    memory = process.memory_full_info()
    return getattr(memory, "pss", memory.rss), memory.rss


def _cpu_s(processes: list[psutil.Process]) -> float:
    """Return the processor time used so far. An ended process is an error: nothing may restart while idle."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)

"""Data workers in stages, by type of device, with `stretto run` on a Keras program (GoldMiner Table 4).

Pods with an accelerator have a quarter of the CPU of others. The program (programs/stages.py) cleans and hashes texts,
which takes some four times the CPU of what it then projects by matrices; these are declared to be of type gpu. There is
no GPU here: a type is a quota of CPU, kept by control groups (cgroups of Linux), which must be writable.

- alone: the training pod, of the gpu type, prepares its batches itself.
- single: one data worker of the gpu type does both stages.
- multi: two data workers of the cpu type feed one of the gpu type.

The same bytes run each way; the ways take turns. While processes start and learn what to prepare, nothing is limited;
then the limits hold, and the program measures itself. Digests of its variables, of every so many steps, must be equal.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from stretto_actuator.limits import Cgroups, Group
from stretto_pipeline.run import SWITCH

from tests.bench.claims import Claim, at_least
from tests.bench.feeding_server import ROOT
from tests.bench.rows import Row, row

CPU_CORES, GPU_CORES = 0.4, 0.1
"""Quotas of a pod of each type; the paper's pods with GPUs have a quarter of the CPU as well."""
WAYS: Mapping[str, Sequence[str]] = {
    "alone": (),
    "single": ("--data-workers", "1"),
    "multi": ("--data-workers", "cpu=2,gpu=1", "--device-type", "MatMul=gpu"),
}
LANES = {"alone": 0, "single": 1, "multi": 3}
ROUNDS, MEASURED_S, WARM_S, LIMIT_S = 2, 40.0, 10.0, 400.0
"""Rounds; seconds of measuring; seconds for lanes that serve to learn and to be compared; limit of a run."""
SINGLE_BAR, MULTI_BAR = 0.8, 1.3
ROW = "steps/s multi / single stage, one data worker of the gpu type"
SINGLE_ROW = "steps/s single stage / alone, one data worker of the gpu type"
WHY = "no GPU here: types are quotas of CPU; the share of both stages in the paper's models is not published"
CLAIMS = (
    Claim("GoldMiner §5.3, Table 4", "a data worker with one stage, on one more GPU, slows training down", "0.74 ×",
          WHY, lambda ours: ours < 1, SINGLE_ROW),
    Claim("GoldMiner §5.3, Table 4", "several stages are faster than a single one by", "1.43 / 0.74 = 1.93 ×",
          WHY, at_least(1.93), ROW),
)  # fmt: skip


class Figures(NamedTuple):
    """Steps per second of one run under its limits, the first step measured, digests by step, and what was said."""

    per_s: float
    first: int
    digests: Mapping[str, str]
    said: str


def run() -> list[Row]:
    cgroups = Cgroups.find(f"stretto-bench-{os.getpid()}")
    if not cgroups.has("cpu"):
        return [row(ROW, float("nan"), "", "", None, "not measured: there is no CPU control group to write")]
    rounds = [{way: measured(way, cgroups) for way in WAYS} for _ in range(ROUNDS)]
    per_s = {way: statistics.median(each[way].per_s for each in rounds) for way in WAYS}
    told = "; ".join(f"{way} " + ", ".join(f"{each[way].per_s:.2f}" for each in rounds) + "/s" for way in WAYS)
    note = f"{told}; pods of {CPU_CORES:g} and {GPU_CORES:g} cores; load {os.getloadavg()[0]:.1f}"
    single = per_s["single"]
    of_alone, of_multi = single / per_s["alone"], single / per_s["multi"]
    multi = per_s["multi"] / single
    differing = [f"{way}: step {step}" for each in rounds for way, step in differences(each)]
    compared = min(last_common(each) - each["multi"].first for each in rounds)
    return [
        row(SINGLE_ROW, single, "1/s",
            f"< 1 ×, or <= {SINGLE_BAR:g} × of multi", of_alone < 1 or of_multi <= SINGLE_BAR,
            f"{of_multi:.2f} × of multi", per_s["alone"], of_alone),
        row(ROW, per_s["multi"], "1/s", f">= {MULTI_BAR:g} ×", multi >= MULTI_BAR, note, single, multi),
        row("steps whose variables differ, with one and with two stages, from alone", len(differing), "", "0",
            not differing and compared > 0,
            f"{', '.join(differing[:3])}compared up to {compared} steps after the limits began; "
            f"{rounds[-1]['multi'].said}"),
    ]  # fmt: skip


def differences(figures: Mapping[str, Figures]) -> list[tuple[str, str]]:
    """Return the ways and steps at which variables are not those of the program alone."""
    alone = figures["alone"].digests
    return [
        (way, step)
        for way, each in figures.items()
        for step, digest in each.digests.items()
        if alone.get(step, digest) != digest
    ]


def last_common(figures: Mapping[str, Figures]) -> int:
    """Return the last step of which all ways have a digest."""
    return max(map(int, set.intersection(*({*each.digests} for each in figures.values()))))


def measured(way: str, cgroups: Cgroups) -> Figures:
    """Run the program to its end. Raises RuntimeError where it fails, or where nothing moves."""
    script = Path(__file__).with_name("programs") / "stages.py"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "tmp").mkdir()
        go, output, errors = folder / "go", folder / "stdout", folder / "stderr"
        command = [sys.executable, "-m", "stretto_pipeline.run", "--exact", *WAYS[way], str(script)]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
        environment |= {"TMPDIR": str(folder / "tmp")} | ({SWITCH: "off"} if way == "alone" else {})
        with output.open("w") as out, errors.open("w") as err:
            program = subprocess.Popen(
                [*command, str(go), str(MEASURED_S)],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=out,
                stderr=err,
            )
        stack.callback(program.wait)
        stack.callback(program.kill)
        lanes = _serving(program, folder / "tmp", LANES[way])
        _until(lambda: Path(f"{go}.ready").exists(), program)
        time.sleep(WARM_S)
        groups = {f"{way}-trainer": ([program.pid], GPU_CORES)}
        for name, pid in lanes.items():
            groups[f"{way}-{name}"] = ([pid], CPU_CORES if name.startswith("cpu") else GPU_CORES)
        stack.enter_context(_limited(cgroups, groups))
        go.touch()
        status = program.wait(LIMIT_S)
        said = [line.removeprefix("stretto: ") for line in errors.read_text().splitlines() if "stretto: " in line]
        if status or (way != "alone" and "prepared" not in said[-1]):
            raise RuntimeError(f"{way}: {said} {errors.read_text()[-300:]}")
        return Figures(**json.loads(output.read_text().splitlines()[-1]), said="; ".join(said))


def _serving(program: subprocess.Popen[bytes], folder: Path, count: int) -> dict[str, int]:
    """Return the data workers by name, once so many serve. Raises RuntimeError."""

    def sockets() -> dict[str, str]:
        return {f"{each.name}.log": each.name for each in folder.glob("stretto-run-*/*") if each.is_socket()}

    _until(lambda: len(sockets()) >= count, program)
    children = psutil.Process(program.pid).children()
    logs = {Path(os.readlink(f"/proc/{each.pid}/fd/2")).name: each.pid for each in children}
    names = sockets()
    return {names[log]: pid for log, pid in logs.items() if log in names}


def _until(is_so: Callable[[], bool], program: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() >= deadline_s or program.poll() is not None:
            raise RuntimeError(f"the program or its data workers did not begin; status {program.poll()}")
        time.sleep(0.1)


@contextlib.contextmanager
def _limited(cgroups: Cgroups, wanted: Mapping[str, tuple[Sequence[int], float]]) -> Generator[None]:
    """Keep processes to their cores, each in a control group of its own."""
    made: list[Group] = []
    try:
        for name, (pids, cores) in wanted.items():
            group = Group({"cpu": cgroups.group(name.replace(" ", "-")).folders["cpu"]})
            group.make()
            made.append(group)
            group.set(cores, 0)
            for entry in group.entries:
                for pid in pids:
                    Path(entry).write_text(str(pid))
        yield
    finally:
        for group in made:
            for pid in group.pids():
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
        deadline_s = time.monotonic() + 10
        while not all([group.remove() for group in made]) and time.monotonic() < deadline_s:
            time.sleep(0.1)


if __name__ == "__main__":
    for each in run():
        print(each)

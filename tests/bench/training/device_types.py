"""Plans over two types of devices, predicted and run: HeterPS' claims on profiles, mixed types and cost.

This machine's speed changes within minutes, so each plan is run beside the first one, and counts as a multiple of it.

Both types are cores of this machine: one computes with the instructions that it has, the other with those of SSE 4.1
(`ONEDNN_MAX_CPU_ISA`). The model is large, so that computing is most of a step. Each worker computes with one thread.
No plan has more than two workers and two servers, which have two cores together, each its own share by a control group,
as pods of one machine do: the model knows no pods that take cores from others. A few plans are measured, as a live job
tries them; the throughput model is fitted to them, and tells what the others would reach before they run.

python -m tests.bench.training.device_types [seconds a plan]
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stretto_actuator.local.control_groups import Cgroups, Group
from stretto_core.algorithms import FIT, PLACE
from stretto_core.model.mixed import MixedWorkers
from stretto_core.model.throughput import Configuration, FittedModel, Measurement
from stretto_core.planner.placement import DeviceType, Placement, PlacementProblem
from stretto_core.planner.staging import measured_layers
from stretto_messages.base import GIB
from stretto_messages.values import Plan, WorkerGroup

from tests.bench.claims import Claim, at_least, at_most
from tests.bench.processes import OURS, Process, Servers, answer
from tests.bench.rows import Row, row
from tests.bench.training import stages
from tests.bench.training.trainer_task import BATCH

SECONDS, HIDDEN = 3.0, "1024,512,256"
ERROR_BAR, RANK_BAR = 0.15, 0.9
WORKER_CORES, SERVER_CORES = 0.7, 0.3
ENVIRONMENTS = {"fast": {}, "slow": {"ONEDNN_MAX_CPU_ISA": "SSE41"}}
"""Environment of the workers of each type."""
PRICES = {"slow": 0.04, "fast": 0.08}
"""Prices per hour of a unit, which decide what the methods of placement choose."""
METHODS = ("exact", "greedy", "genetic", "bayesian", "cpu-only", "gpu-only", "heuristic")
ERROR_ROW, RANK_ROW = "12 plans over types: mean error of predicted throughput", "12 plans over types: rank correlation"
BESIDE_SLOW, BESIDE_FAST = (f"mixed types beside the {kind} one alone, run" for kind in ("slow", "fast"))
COST_ROW = "cost of the exact placement, run, times the least of other methods'"
CLAIMS = (
    Claim("HeterPS §4.1", "E6: profiles are easily obtained on one server", "wrong by up to 17.4 × for CPUs",
          "mean error of twelve plans over two CPU types that the model had not seen; one worker on each type, two "
          "workers and two servers were measured", at_most(ERROR_BAR), ERROR_ROW),
    Claim("HeterPS Fig. 12", "T: mixed types train faster than CPUs alone", "1.53 ×",
          "one unit of each of two CPU types beside that of the slower one; accelerators: not measured",
          at_least(1.53), BESIDE_SLOW),
    Claim("HeterPS Fig. 12", "T: mixed types train faster than GPUs alone", "1.82 ×",
          "one unit of each of two CPU types beside that of the faster one, which takes the accelerator's place; "
          "accelerators: not measured", at_least(1.82), BESIDE_FAST),
    Claim("HeterPS Fig. 11", "C: its plans cost less than those of other methods when they run", "-",
          "each distinct plan of seven methods was run on two CPU types with invented prices; accelerators: not "
          "measured", at_most(1.0), COST_ROW),
)  # fmt: skip


class Ran(NamedTuple):
    """A plan: workers of each type that have the whole step, or rows, and those behind the rows (empty: none)."""

    rows: tuple[tuple[str, int], ...]
    dense: tuple[tuple[str, int], ...] = ()
    servers: int = 1

    @property
    def plan(self) -> Plan:
        """The plan as the planner states it."""
        cores = WORKER_CORES
        groups = [WorkerGroup(kind, count, cores, GIB) for kind, count in sorted(self.rows)]
        groups += [WorkerGroup(kind, count, cores, GIB, stage=1, first_layer=1) for kind, count in sorted(self.dense)]
        workers = sum(group.workers for group in groups)
        return Plan(workers, self.servers, cores, SERVER_CORES, GIB, GIB, groups=tuple(groups))

    @property
    def price_per_hour(self) -> float:
        """The price of all its units."""
        return sum(PRICES[kind] * count for kind, count in (*self.rows, *self.dense))


FAST, SLOW, TWO_FAST, TWO_SLOW = ((("fast", 1),), (("slow", 1),), (("fast", 2),), (("slow", 2),))
MIXED = (("fast", 1), ("slow", 1))
MEASURED = (Ran(FAST), Ran(SLOW), Ran(TWO_FAST), Ran(FAST, servers=2))
PREDICTED = (
    *(Ran(rows) for rows in (TWO_SLOW, MIXED)),
    *(Ran(rows, servers=2) for rows in (SLOW, TWO_FAST, TWO_SLOW, MIXED)),
    *(Ran(FAST, dense, count) for dense in (FAST, SLOW) for count in (1, 2)),
    *(Ran(SLOW, dense) for dense in (FAST, SLOW)),
)


class Machine:
    """Two workers of each type, and sets of one and of two parameter servers."""

    def __init__(self) -> None:
        command = ("-m", "tests.bench.training.device_types", "worker")
        self.workers = {
            kind: [Process(*command, environment=given) for _ in range(2)] for kind, given in ENVIRONMENTS.items()
        }
        self.servers = {count: Servers(OURS) for count in (1, 2)}
        self._shard = self._socket = 0
        self._first = 0.0
        for process in self._processes:
            process.send(do="start", hidden=HIDDEN)
        for process in self._processes:
            process.receive()
        for count, servers in self.servers.items():
            servers.start(count)
            servers.place()
        self._folder = tempfile.TemporaryDirectory(prefix="stretto-bench-")
        self._groups = self._limited(Cgroups.of_installation(Path(self._folder.name)))

    def _limited(self, groups: Cgroups) -> list[Group]:
        """Give each process its share of the cores; return the control groups, none where they are not writable."""
        if not groups.has("cpu"):
            return []
        servers = [each for started in self.servers.values() for each in started.processes]
        shares = [(each, WORKER_CORES) for each in self._processes] + [(each, SERVER_CORES) for each in servers]
        made = list[Group]()
        for number, (process, cores) in enumerate(shares):
            group = groups.group(f"pod-{number}")
            group.make()
            group.set(cores, 8 * GIB)
            for entry in group.entries:
                Path(entry).write_text(str(process.child.pid))
            made.append(group)
        return made

    @property
    def shares(self) -> str:
        """How the processes share the cores, for a note."""
        return f"{WORKER_CORES} cores a worker, {SERVER_CORES} a server" if self._groups else "cores are shared"

    @property
    def _processes(self) -> list[Process]:
        return [process for processes in self.workers.values() for process in processes]

    def run(self, ran: Ran, seconds: float) -> list[tuple[str, dict[str, Any]]]:
        """Run a plan; return what each worker that reads has told, with its type."""
        left = {kind: [*processes] for kind, processes in self.workers.items()}
        dense, rows = (
            [(kind, left[kind].pop()) for kind, count in part for _ in range(count)] for part in (ran.dense, ran.rows)
        )
        servers = self.servers[ran.servers]
        for number, (_, process) in enumerate([*dense, *rows]):
            process.ask(do="connect", worker=number, servers=servers.addresses, **servers.access)
        members: dict[str, Any] = {}
        for number, (_, process) in enumerate(dense):
            self._socket += 1
            address = f"{servers.addresses[0]}-{self._socket}"
            members[str(number)] = process.ask(do="serve", address=address, first_layer=1, members={})
        for _, process in rows:
            self._shard += 1
            process.send(do="train", members=members, seconds=seconds, shard=self._shard)
        return [(kind, process.receive()) for kind, process in rows]

    def beside(self, ran: Ran, seconds: float) -> tuple[list[tuple[str, dict[str, Any]]], float]:
        """Run the first plan and this one; return what `run` does, and the speed of the machine in multiples of that
        at the first call."""
        reached = throughput_of(self.run(MEASURED[0], seconds / 2))
        self._first = self._first or reached
        return self.run(ran, seconds), reached / self._first

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        for servers in self.servers.values():
            servers.kill()
        for group in self._groups:
            group.remove()
        self._folder.cleanup()


def throughput_of(told: Sequence[tuple[str, dict[str, Any]]], speed: float = 1.0) -> float:
    """Return the samples per second of all workers, at the first speed of the machine."""
    return sum(BATCH * each["steps"] / each["seconds"] for _, each in told) / speed


def measurements_of(ran: Ran, told: Sequence[tuple[str, dict[str, Any]]], speed: float) -> list[Measurement]:
    """Return what the fitter takes of a run, once for each type, at the first speed of the machine."""
    found = list[Measurement]()
    for kind in sorted({kind for kind, _ in told}):
        windows = [each for name, each in told if name == kind]
        components = {
            name: speed * float(np.median([each["components_s"][name] for each in windows]))
            for name in stages.COMPONENTS
        }
        step_s = speed * float(np.median([each["step_s"] for each in windows]))
        found.append(Measurement(Configuration.of(ran.plan, BATCH, kind), step_s, 1.0, components))
    return found


def ranks_agree(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation: that of the places in order."""
    places = [np.argsort(np.argsort(each)) for each in (one, other)]
    return float(np.corrcoef(*places)[0, 1])


def placed(model: FittedModel, throughput_limit: float) -> dict[str, Ran]:
    """Return the plan of each method of placement that finds one, for the profile of the model."""
    kinds = ("slow", "fast")
    types = (DeviceType("cpu", PRICES["slow"], 2), DeviceType("fast", PRICES["fast"], 2))
    problem = PlacementProblem(
        measured_layers(model, 1, SERVER_CORES, kinds), types, BATCH, throughput_limit, samples=1e6
    )
    plans: dict[str, Ran] = {}
    for name in METHODS:
        found: Placement | None = PLACE.named(name)(problem)
        if found is not None:
            parts = [((kinds[stage.type], stage.units),) for stage in found.stages]
            plans[name] = Ran(*parts)
    return plans


def run(seconds: float = SECONDS) -> list[Row]:
    machine = Machine()
    try:
        for ran in (Ran(TWO_FAST), Ran(TWO_SLOW)):
            machine.run(ran, 1.0)  # the first steps of a process trace its graphs
        first = {ran: machine.beside(ran, seconds) for ran in MEASURED}
        measurements = [each for ran, found in first.items() for each in measurements_of(ran, *found)]
        model: FittedModel = FIT.named(FIT.default)(measurements)
        predicted = {ran: MixedWorkers(model, BATCH).throughput(ran.plan) for ran in PREDICTED}
        reached = {ran: throughput_of(*machine.beside(ran, seconds)) for ran in PREDICTED}
        reached |= {ran: throughput_of(*found) for ran, found in first.items()}
        plans = placed(model, 0.9 * predicted[Ran(MIXED)])
        for ran in {*plans.values()} - reached.keys():
            reached[ran] = throughput_of(*machine.beside(ran, seconds))
    finally:
        machine.close()
    return [*_of_predictions(predicted, reached, machine.shares), *_of_mixes(reached), _of_costs(plans, reached)]


def _of_predictions(predicted: dict[Ran, float], reached: dict[Ran, float], shares: str) -> list[Row]:
    pairs = [(predicted[ran], reached[ran]) for ran in PREDICTED]
    errors = [told / found - 1 for told, found in pairs]
    error, rank = float(np.mean(np.abs(errors))), ranks_agree(*zip(*pairs, strict=True))
    note = f"{shares}; errors {[round(each, 2) for each in errors]} of {[round(found) for _, found in pairs]} samples/s"
    return [
        row(ERROR_ROW, error, "", f"<= {ERROR_BAR:g}", error <= ERROR_BAR, note),
        row(RANK_ROW, rank, "", f">= {RANK_BAR:g}", rank >= RANK_BAR, "Spearman's"),
    ]


def _of_mixes(reached: dict[Ran, float]) -> list[Row]:
    mixed = reached[Ran(MIXED)]
    note = "one unit of each type, of the CPU instruction sets; no accelerator was at hand"
    return [
        row(name, mixed, "samples/s", "", None, note, reached[Ran(alone)])
        for name, alone in ((BESIDE_SLOW, SLOW), (BESIDE_FAST, FAST))
    ]


def _of_costs(plans: dict[str, Ran], reached: dict[Ran, float]) -> Row:
    costs = {name: 1e6 * ran.price_per_hour / 3600 / reached[ran] for name, ran in plans.items()}
    ours = costs.pop("exact", math.nan)
    least = min(costs.values(), default=math.nan)
    told = ", ".join(f"{name} {cost / ours:.2f}" for name, cost in costs.items())
    note = f"{len({*plans.values()})} distinct plans; cost by method, times the exact one's: {told}"
    return row(COST_ROW, ours, "$ a million samples", "", None, note, least)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        commands = {"start": stages.start, "connect": stages.connect, "serve": stages.serve, "train": stages.train}
        answer(commands)
    for each in run(*map(float, sys.argv[1:])):
        print(each)

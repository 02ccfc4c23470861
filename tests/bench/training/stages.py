"""Stages beside workers that compute all layers: steps a second at equal cores, and what a step of a stage takes.

Three workers train the trainer bench's model on two parameter servers, on all cores of this machine: alone (K = 1),
with two members of a second stage that has all layers behind the rows (K = 2), and with two more of a third one that
begins in the middle of the layers (K = 3). Each is a process that computes with one thread. The three ways alternate.
With K = 2 steps then pass to members that are new and warm. Last the three workers ask a single member, for which they
all wait.

python -m tests.bench.training.stages [seconds]
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.bench.claims import Claim, always, at_most
from tests.bench.processes import OURS, Servers, answer, ask_all
from tests.bench.rows import Row, row

WORKERS, MEMBERS, SERVERS = 3, 2, 2
ROUNDS, SECONDS = 3, 6.0
STEPS_MAX = 1_000
"""Steps of a worker in a round, which ends before."""
SPEED_BAR = 0.9
COMPONENTS = ("emb", "grad", "upd", "sync")
MOVE_BAR, LOOKED_AT = 2.0, 20
"""Longest pause beside the longest ordinary step, and the steps in which a pause is looked for."""
MOVE_ROW = "stages: longest pause when steps pass to other members, beside the longest ordinary step"
STAGE_ROW = "stages: seconds a step of a member that three workers wait for, times max(compute, exchange)"
CLAIMS = (
    Claim("HeterPS §3", "E1: a stage is consecutive layers on one type", "-",
          "a model is cut behind its rows; a functional Keras one and a PyTorch module between any layers; K = 1 and 2 "
          "train the same bits on one type, K = 3, too, in PyTorch, and the same to 1e-6 in Keras "
          "(libs/trainer/tests/stages/test_keras_parts.py, test_torch_parts.py)", always, ours="bits, and 1e-6"),
    Claim("HeterPS §5.1", "E2: a pipeline between stages, data parallelism within them", "-",
          "workers that ask a member of the next stage for the rest of a step; members and workers are lost in 50 "
          "orders (libs/trainer/tests/stages/test_stages.py)", always, ours="0 samples lost, 0 repeated"),
    Claim("HeterPS Eq. 3", "E5: a stage takes the larger of computing and communication", "-",
          "a member computes one step while it pulls and pushes for others; with a single worker it takes their sum",
          at_most(1.0), STAGE_ROW),
    Claim("HeterPS §3", "E7: layers are scheduled again during the training", "-",
          "another price or speed of a type moves a running job by itself (libs/core/tests/planner/test_mixing.py, "
          "test_staging.py); the next step goes to a stage's new members, which are warm", at_most(MOVE_BAR), MOVE_ROW),
)  # fmt: skip

Members = Mapping[str, tuple[str, int]]
"""Addresses and first layers of a stage's members, by their numbers."""


def start(state: dict[str, Any], hidden: str = "256,128,64") -> int:
    """Build the model; return the number of its layers."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    from stretto.build import make_program
    from stretto.model.program import Options

    from tests.bench.training.trainer_task import PooledWideDeep

    state["program"] = program = make_program(PooledWideDeep(hidden), Options())
    program.warm()
    return len(program.layers)


def connect(state: dict[str, Any], worker: int, servers: dict[str, str], key: str, encrypted: bool) -> None:
    """Use these parameter servers from now on."""
    from stretto.engine import Access, Key, Parameters
    from stretto.stages.asking import NextStage

    program = state["program"]
    state["access"] = access = Access(Key.of(key.encode()), encrypted)
    addresses = {int(server): address for server, address in servers.items()}
    state["parameters"] = parameters = Parameters(program.layout, addresses, worker=worker, access=access)
    parameters.seed(program.initial_dense(), program.initial_state())
    state["following"] = NextStage(worker, access, time.monotonic)


def _follow(state: dict[str, Any], members: Members) -> None:
    from stretto.stages.asking import Member

    state["following"].use({int(number): Member(*member) for number, member in members.items()})


def serve(state: dict[str, Any], address: str, first_layer: int, members: Members) -> tuple[str, int]:
    """Serve steps from now on; return address and first layer."""
    from stretto.stages.serving import Stage, StageServer

    if "server" in state:
        state["server"].close()
    _follow(state, members)
    state["served"] = served = list[Any]()
    program, following = state["program"], state["following"]
    parts = state.setdefault("parts", functools.cache(program.part))  # what was traced stays so
    stage = Stage(parts, program.layout, first_layer, following, time.monotonic, served.append)
    stage.parameters = state["parameters"]
    stage.part(following.first_layer).warm()
    state["server"] = StageServer(stage, address, state["access"])
    return state["server"].address, first_layer


def train(state: dict[str, Any], members: Members, seconds: float, shard: int) -> dict[str, Any]:
    """Train for so long; without members all layers are computed here, as in a job without stages.

    Return steps and seconds, and the window of these steps, with its components by the names of the step time's.
    """
    _follow(state, members)
    begun = time.monotonic()
    window = _trained(state, bool(members), shard, lambda: time.monotonic() < begun + seconds)
    times = (window.times.rows_s, window.times.gradient_s, window.times.update_s, window.times.sync_s)
    components = dict(zip(COMPONENTS, times, strict=True))
    ended = time.monotonic() - begun
    return {"steps": window.steps, "seconds": ended, "step_s": window.step_s, "components_s": components}


def move(state: dict[str, Any], members: Members, later: Members, seconds: float, shard: int) -> dict[str, float]:
    """Train for so long, and pass to other members halfway; return the longest steps before and behind."""
    _follow(state, members)
    ends, moved = [time.monotonic()], 0

    def keep_going() -> bool:
        nonlocal moved
        ends.append(time.monotonic())
        if not moved and ends[-1] > ends[0] + seconds / 2:
            moved = len(ends)
            _follow(state, later)
        return ends[-1] < ends[0] + seconds

    _trained(state, True, shard, keep_going)
    steps = [after - before for before, after in itertools.pairwise(ends)]
    ordinary = steps[moved - 1 - LOOKED_AT : moved - 1]
    return {
        "ordinary": max(ordinary),
        "median": statistics.median(ordinary),
        "pause": max(steps[moved - 1 :][:LOOKED_AT]),
    }


def _trained(state: dict[str, Any], is_staged: bool, shard: int, keep_going: Callable[[], bool]) -> Any:
    """Train while the function says so; return the window of these steps."""
    from stretto.parts import FIRST_LAYER
    from stretto.stages.rows import RowsStage
    from stretto.worker.step import Trainer, Work
    from stretto.worker.step_timer import StepTimer

    from tests.bench.training.trainer_task import BATCH

    program, parameters = state["program"], state["parameters"]
    stage = RowsStage(parameters, state["following"], program.part(FIRST_LAYER, None)) if is_staged else None
    meter = StepTimer()
    trainer = Trainer(*(program, parameters, BATCH, meter), keep_going=keep_going, pipeline_from_step=0, stage=stage)
    trainer.train(Work(shard, 1, 0, BATCH * STEPS_MAX))
    trainer.close()
    return meter.window()


def _served(state: dict[str, Any]) -> dict[str, float]:
    served = state["served"]
    compute = statistics.mean(each.compute_s for each in served)
    exchange = statistics.mean(each.exchange_s for each in served)
    step = (served[-1].ended_s - served[0].ended_s) / (len(served) - 1)
    return {"step": step, "compute": compute, "exchange": exchange}


class _Stages:
    """The processes, and the ways to use them."""

    def __init__(self, folder: str, servers: Servers) -> None:
        self._folder = folder
        command = ("-m", "tests.bench.training.stages", "worker")
        self.processes = [OURS.process(*command) for _ in range(WORKERS + 2 * MEMBERS)]
        layers = ask_all(self.processes, do="start")
        for number, process in enumerate(self.processes):
            process.ask(do="connect", worker=number, servers=servers.addresses, **servers.access)
        self._middle = layers[0] // 2
        self.workers = self.processes[:WORKERS]
        self._shard = 0

    def members(self, stages: int, count: int = MEMBERS, *, spare: bool = False) -> Members:
        """Start the later stages; return the members of the second one. spare: in processes that else have a third."""
        following: Members = {}
        for stage in range(stages - 1, 0, -1):
            first = WORKERS + (stage - 1 + spare) * MEMBERS
            numbers, first_layer = range(first, first + count), 1 if stage == 1 else self._middle
            for number in numbers:
                address = f"unix:{self._folder}/stage-{stages}-{count}-{number}.sock"
                self.processes[number].send(do="serve", address=address, first_layer=first_layer, members=following)
            following = {str(number): self.processes[number].receive() for number in numbers}
        return following

    def train(self, members: Members, seconds: float) -> float:
        """Return the steps a second of all workers."""
        for worker in self.workers:
            self._shard += 1
            worker.send(do="train", members=members, seconds=seconds, shard=self._shard)
        return sum(found["steps"] / found["seconds"] for found in (worker.receive() for worker in self.workers))

    def move(self, seconds: float) -> dict[str, float]:
        """Train in two stages, and pass to other members halfway; return the longest steps of all workers."""
        sets = {"members": self.members(2), "later": self.members(2, spare=True)}
        for worker in self.workers:
            self._shard += 1
            worker.send(do="move", **sets, seconds=seconds, shard=self._shard)
        found = [worker.receive() for worker in self.workers]
        return {name: max(each[name] for each in found) for name in found[0]}


def run(seconds: float = SECONDS) -> list[Row]:
    servers = Servers(OURS)
    servers.start(SERVERS)
    servers.place()
    stages = _Stages(servers.addresses[0].removeprefix("unix:").rpartition("/")[0], servers)
    try:
        rates: dict[int, list[float]] = {1: [], 2: [], 3: []}
        for number in range(ROUNDS + 1):
            for count, found in rates.items():
                rate = stages.train(stages.members(count), seconds if number else 2.0)
                found += [rate] * (number > 0)  # the first round traces the graphs
        moves = [stages.move(seconds) for _ in range(ROUNDS)]
        member = stages.members(2, 1)
        stages.train(member, seconds)
        times = stages.processes[WORKERS].ask(do="served")
    finally:
        for process in stages.processes:
            process.kill()
        servers.kill()
    told = f"{WORKERS} workers, {MEMBERS} members of each later stage, {SERVERS} servers, on the same cores"
    rows = []
    for count in (2, 3):
        ratios = [ours / alone for ours, alone in zip(rates[count], rates[1], strict=True)]
        ratio, alone = statistics.median(ratios), statistics.median(rates[1])
        note = f"{told}. Rounds {[round(each, 2) for each in ratios]}"
        value = statistics.median(rates[count])
        rows.append(
            row(
                f"stages: steps a second, K = {count}",
                value,
                "steps/s",
                f">= {SPEED_BAR} x",
                ratio >= SPEED_BAR,
                note,
                alone,
                ratio,
            )
        )
    larger, both = max(times["compute"], times["exchange"]), times["compute"] + times["exchange"]
    note = f"computing {1e3 * times['compute']:.2f} ms, pulling and pushing {1e3 * times['exchange']:.2f} ms; "
    note += f"{times['step'] / both:.2f} x their sum"
    return [*rows, _of_moves(moves), row(STAGE_ROW, times["step"], "s", "", None, note, larger)]


def _of_moves(moves: Sequence[Mapping[str, float]]) -> Row:
    ratios = [each["pause"] / each["ordinary"] for each in moves]
    ratio = statistics.median(ratios)
    pause, ordinary = (statistics.median(each[name] for each in moves) for name in ("pause", "ordinary"))
    beside = [round(each["pause"] / each["median"], 2) for each in moves]
    note = f"rounds {[round(each, 2) for each in ratios]}; beside the median step {beside}"
    return row(MOVE_ROW, pause, "s", f"<= {MOVE_BAR:g} x", ratio <= MOVE_BAR, note, ordinary, ratio)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        answer({"start": start, "connect": connect, "serve": serve, "train": train, "move": move, "served": _served})
    for each in run(*map(float, sys.argv[1:])):
        print(each)

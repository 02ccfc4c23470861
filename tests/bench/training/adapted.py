"""A user's own Keras model beside the same model written for Stretto: steps per second, in turns of one run.

python -m tests.bench.training.adapted [seconds]
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from tests.bench.processes import OURS, Servers, ask_all
from tests.bench.rows import Row, row

ROUNDS = 10
BAR = 1.05
"""times the time of the hand-written task's step"""
MODELS = ("tests.bench.training.trainer_task:PooledWideDeep", "tests.bench.training.adapted_task:AdaptedWideDeep")


class Side:
    """A worker and a parameter server of one of the models."""

    def __init__(self, model: str) -> None:
        self.worker = OURS.process("-m", "tests.bench.training.trainer_worker", model)
        layout = ask_all([self.worker], do="layout")[0]["layout"]
        self.servers = Servers(OURS, layout)
        self.servers.start(1)
        self.servers.place()
        self.worker.ask(do="connect", worker=0, servers=self.servers.addresses, **self.servers.access)

    def step_ms(self, seconds: float) -> tuple[float, float]:
        """Train; return the milliseconds of a step, and those of the worker's CPU."""
        begun, cpu_s = time.monotonic(), self.worker.cpu_s()
        ask_all([self.worker], do="train", seconds=seconds)
        ends = ask_all([self.worker], do="collect")[0]["ends"]
        return 1e3 * (max(ends) - begun) / len(ends), 1e3 * (self.worker.cpu_s() - cpu_s) / len(ends)

    def kill(self) -> None:
        self.worker.kill()
        self.servers.kill()


def run(seconds: float = 40.0) -> list[Row]:
    """Measure both sides in alternating rounds, warm, while the other is at rest."""
    each_s = max(1.0, seconds / (2 * ROUNDS))
    sides = [Side(model) for model in MODELS]
    try:
        for side in sides:
            side.step_ms(2.0)
        turns = [[side.step_ms(each_s) for side in sides] for _ in range(ROUNDS)]
    finally:
        for side in sides:
            side.kill()
    ratios = [adapted[0] / written[0] for written, adapted in turns]
    written, adapted = (statistics.median(turn[i][0] for turn in turns) for i in range(2))
    cpu = [statistics.median(turn[i][1] for turn in turns) for i in range(2)]
    ratio = statistics.median(ratios)
    return [
        row(
            "a step of a user's own Keras model, 26 embedding layers of 16 floats",
            adapted,
            "ms",
            f"<= {BAR:g}",
            ratio <= BAR,
            f"1 worker, 1 parameter server; baseline: the hand-written task; the worker's CPU {cpu[1]:.2f} and "
            f"{cpu[0]:.2f} ms; rounds {[round(r, 2) for r in ratios]}",
            written,
            ratio,
        )
    ]


if __name__ == "__main__":
    print(json.dumps(run(*map(float, sys.argv[1:])), indent=1))

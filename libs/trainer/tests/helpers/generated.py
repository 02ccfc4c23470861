"""Generated models, trained two steps by Stretto for tests that compare them with their framework."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
from stretto.build import make_program
from stretto.model.one_step import compare_steps
from stretto.model.program import Options, Program
from stretto.trial.local import Here, tables_of

BATCH = 24
ERROR = 1e-4
"""Difference of weights that rounding may make in two steps of 0.05, where an optimizer divides by a small gradient."""


class Samples:
    """Ids, weights and labels of a seed. The second batch is the first one again, so that each row is in both."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draw = random.Random(seed)
        self.sizes = {name: draw.choice((4, 9, 40)) for name in ("one", "two", "three")[: draw.choice((1, 2, 3))]}
        self.target = draw.choice(("binary", "stars", "class"))
        self.is_weighted = draw.random() < 0.2

    def read(self, start: int, length: int) -> Any:
        """Return samples as `model.fit` takes them."""
        place = np.arange(start, start + length) % BATCH
        draw = np.random.default_rng(self.seed)
        inputs = {name: draw.zipf(1.5, (BATCH, 2))[place] % size for name, size in self.sizes.items()}
        labels = {
            "binary": draw.integers(0, 2, BATCH).astype(np.float32),
            "stars": draw.normal(3, 1, BATCH).astype(np.float32),
            "class": draw.integers(0, 3, BATCH),
        }
        label = labels[self.target][place]
        return (inputs, label, (0.5 + place % 3).astype(np.float32)) if self.is_weighted else (inputs, label)

    def seen(self, table: str) -> Any:
        """Return the ids of a table that batches have; a row that none has keeps its first weights."""
        name = next(each for each in self.sizes if each in re.split("[./_]", table))
        return np.unique(self.read(0, BATCH)[0][name])


def trained(task: Any) -> tuple[Program, dict[str, Any]]:
    """Compare a task's steps, and train two batches on a server here; return the program, and its tables' first rows.

    The program's model has its trained weights. Raises ModelRefused.
    """
    program = make_program(task, Options(batch_size=BATCH))
    assert compare_steps(program) == "", "all that these models draw has a seed"
    with Here(program, BATCH, pipeline=False) as here:
        start = tables_of(program, here.pull)
        here.train(0, 2 * BATCH)
        here.load_into_model()
        program.restore(tables_of(program, here.pull))
    return program, start

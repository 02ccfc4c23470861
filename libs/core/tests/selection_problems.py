"""Small selection problems for every algorithm, and the value that none exceeds."""

from __future__ import annotations

import itertools
import math

from hypothesis import strategies as st
from stretto_core.arbiter.selection import Contender, Option, SelectionProblem

amount = st.sampled_from([-2.0, -0.5, 0.0, 0.3, 1.0, 2.0, 3.0, 5.0])


@st.composite
def problems(draw: st.DrawFn) -> SelectionProblem:
    """Small, with what gives back, what costs nothing and what brings a loss; cores and bytes."""
    contenders = []
    for j in range(draw(st.integers(1, 4))):
        options = tuple(
            Option(
                str(i),
                {"cpu_cores": draw(amount), "memory_bytes": draw(amount) * 1e9},
                draw(st.floats(-1.0, 5.0)),
                draw(st.floats(-50.0, 500.0)),
                draw(st.floats(1.0, 1e5)),
            )
            for i in range(draw(st.integers(0, 4)))
        )
        now = draw(st.one_of(st.none(), st.floats(0, 1e5)))
        contenders.append(Contender(f"j{j}", draw(st.floats(0, 1e7)), options, draw(st.floats(0.1, 10)), now))
    return SelectionProblem(
        tuple(contenders),
        {"cpu_cores": draw(st.floats(-1, 12)), "memory_bytes": draw(st.floats(0, 12)) * 1e9},
        draw(st.sampled_from(["efficiency", "gain", "completion"])),
        draw(st.sampled_from([0.0, 2.5, -1.0])),
    )


def brute_force(problem: SelectionProblem) -> float:
    """The best value of all choices that fit."""
    best = 0.0
    for picks in itertools.product(*([None, *c.options] for c in problem.contenders)):
        if problem.fits([option for option in picks if option is not None]):
            pairs = zip(problem.contenders, picks, strict=True)
            best = max(best, math.fsum(problem.value(c, o) for c, o in pairs if o is not None))
    return best

"""Programs that try data workers, and keep them or go home: the same numbers as alone, to the last bit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from program_harness import compared
from program_texts import FITS, LOOPS

pytestmark = pytest.mark.slow

RUNNER = """
from stretto_programs.lanes import trial
from stretto_programs.run import main
trial.STEPS, trial.SKIPPED, trial.SLOWER = 8, 3, {slower}
main()
"""
PROGRAMS = {
    "fit": FITS
    + """
fit("fit", raw(1600).shuffle(80, seed=3).map(parsed).batch(8), epochs=2, callbacks=[Meets(15)])
""",
    "loops": LOOPS
    + """
data = raw(1600).shuffle(80, seed=3).map(parsed).batch(8)
for epoch in range(2):
    for number, element in enumerate(data):
        element_step(*element)
        if not epoch and number == 15:
            meet(15)
tell("elements", traces)
for epoch in range(2):
    iterator = iter(data)
    for number in range(200):
        step(iterator)
tell("function", traces)
try:
    step(iterator)
except tf.errors.OutOfRangeError:
    tell("its end", [texts(each) for each in data.take(2)])
""",
}


@pytest.mark.parametrize("slower", [pytest.param(1e9, marks=pytest.mark.night, id="kept"), pytest.param(0, id="home")])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_changes_over_and_back_has_the_numbers_of_the_program_alone(
    tmp_path: Path, program: str, slower: float
) -> None:
    _, errors = compared(tmp_path, PROGRAMS[program], meet=15, free=RUNNER.format(slower=slower))
    told = re.findall(r"goes on without data workers: a step took [\d.]+ ms alone, [\d.]+ ms with them$", errors, re.M)
    assert bool(told) == (not slower)
    figures = (
        r"of (\d+) steps; a step took [\d.]+ ms alone, [\d.]+ ms with them; CPU, imports included: [\d.]+ s in the "
    )
    found = re.search(figures + r"program, ([\d.]+) s in data workers$", errors, re.M)
    assert found is not None, errors
    assert int(found[1]) >= 400
    assert float(found[2]) > 0, "lanes and the process that they were forked from"

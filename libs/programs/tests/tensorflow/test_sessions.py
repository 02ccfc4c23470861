"""Sessions of TensorFlow 1 under `python -m stretto_programs.run`: they run as alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_harness import running
from stretto_programs.tensorflow.sessions import ALONE

pytestmark = pytest.mark.slow

SESSION = """
import tensorflow as tf
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    numbers = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(20).map(lambda n: n * n)).get_next()
    print([int(session.run(numbers)) for _ in range(20)])
with tf.compat.v1.Session(graph=tf.Graph()):
    pass
"""


def test_a_session_of_tensorflow_1_runs_as_alone_and_one_line_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "run", SESSION) as program:
        status, out, errors = program.ended()
    assert (status, out) == (0, f"{[n * n for n in range(20)]}\n"), errors
    told = [line for line in errors.splitlines() if line.startswith("stretto:")]
    assert told == [f"stretto: {ALONE}", "stretto: the program ran without data workers"]

"""Seconds until a worker has joined: a real pod on a real bus, with a dispatcher of a few lines."""

from __future__ import annotations

import importlib.util
import re
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.rows import Row, row_at_most

HARNESS = Path(__file__).parents[2] / "libs/trainer/tests/trainer_harness.py"
JOINS = 3


def harness() -> Any:
    spec = importlib.util.spec_from_file_location("trainer_harness", HARNESS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure_joining() -> Row:
    """Return the seconds from a worker's start to its first finished step, less its own import of TensorFlow.

    A shard is one batch, so that the report of the first shard tells the end of the first step.
    """
    tools = harness()

    class Watched(tools.Cluster):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.first_report_s: dict[str, float] = {}

        def _next(self, request: Any) -> Any:
            if request.complete is not None:
                self.first_report_s.setdefault(request.pod, time.monotonic())
            return super()._next(request)

    spec = tools.spec_of(
        512 * 10**5,
        model={"arguments": {"seed": 5, "hidden": "256,128,64"}, "embedding_dim": 16},
        dataset={"batch_size": 512, "batches_per_shard": 10**5},
    )
    measured: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        cluster = Watched(Path(folder), spec)
        shard = cluster.todo[0]
        cluster.todo = [replace(shard, id=i, start=512 * i, length=512) for i in range(100_000)]
        cluster.start()
        try:
            cluster.start_ps(0, 1)
            for pod in [f"worker-{n}" for n in range(JOINS)]:
                begun = time.monotonic()
                process = cluster.launch(pod)
                tools.wait_for(lambda pod=pod: pod in cluster.first_report_s, 60, f"the first step of {pod}")
                found = re.search(r"TensorFlow imported in ([\d.]+) s", cluster.log(pod))
                assert found is not None
                measured.append((cluster.first_report_s[pod] - begun, float(found[1])))
                process.kill()
                process.wait()
        finally:
            cluster.stop()
    beyond = [total - imported for total, imported in measured]
    value = statistics.median(beyond)
    baseline = statistics.median(imported for _, imported in measured)
    note = (
        "from its process start to its first finished step, less the baseline: its own import of TensorFlow; "
        f"median of {[round(seconds, 2) for seconds in beyond]}"
    )
    return row_at_most("a worker joins", value, "s", 1.5, note, baseline)

"""Real pods on a real bus, with a dispatcher of a few lines: seconds until a worker trains, or a server is ready."""

from __future__ import annotations

import importlib
import re
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tests.bench.rows import Row, row_at_most

JOINS = 3
MIB = 2**20


def harness() -> Any:
    return importlib.import_module("trainer_harness")


class Pods:
    """A job's pods. A shard is one batch, so that the report of the first shard tells the end of the first step."""

    def __init__(self) -> None:
        self._tools = tools = harness()
        first_report_s = self._first_report_s = {}

        class Watched(tools.Cluster):
            def _next(self, request: Any) -> Any:
                if request.complete is not None:
                    first_report_s.setdefault(request.pod, time.monotonic())
                return super()._next(request)

        spec = tools.spec_of(
            512 * 10**5,
            model={"arguments": {"seed": 5, "hidden": "256,128,64"}, "embedding_dim": 16},
            dataset={"batch_size": 512, "batches_per_shard": 10**5},
        )
        self._folder = tempfile.TemporaryDirectory()
        self._cluster = Watched(Path(self._folder.name), spec)
        shard = self._cluster.todo[0]
        self._cluster.todo = [replace(shard, id=i, start=512 * i, length=512) for i in range(100_000)]

    def __enter__(self) -> Pods:
        self._cluster.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()
        self._folder.cleanup()

    def start_of_worker(self, number: int) -> tuple[float, float]:
        """Return the seconds from a worker's exec to its first finished step, and those of its model's imports."""
        cluster, pod = self._cluster, f"worker-{number}"
        if not cluster.servers:
            cluster.environment = cluster.own_folder("ps-0")
            cluster.start_ps(0)
        begun = time.monotonic()
        process = cluster.launch(pod)
        self._tools.wait_for(lambda: pod in self._first_report_s, 60, f"the first step of {pod}")
        found = re.search(r" imported in ([\d.]+) s", cluster.log(pod))
        assert found is not None
        process.kill()
        process.wait()
        return self._first_report_s[pod] - begun, float(found[1])

    def start_of_server(self, number: int) -> tuple[float, float, float]:
        """Return the seconds from a server's exec to its first answered ping, those of CPU, and its resident MiB."""
        cluster, pod = self._cluster, f"ps-{number}"
        begun = time.monotonic()
        process = cluster.launch(pod, **cluster.own_folder(pod))
        while True:
            try:
                if cluster.ask(pod, self._tools.PodPing(job=cluster.job), 0.2).ready:
                    break
            except Exception:  # nobody answers yet
                if process.poll() is not None:
                    raise
                time.sleep(0.005)
        seconds, found = time.monotonic() - begun, psutil.Process(process.pid)
        times = found.cpu_times()
        memory = found.memory_info().rss / MIB
        process.kill()
        process.wait()
        return seconds, times.user + times.system, memory


def measure_joining() -> Row:
    """Return the seconds from a worker's start to its first finished step, less the import of its model's code."""
    with Pods() as pods:
        measured = [pods.start_of_worker(number) for number in range(JOINS)]
    beyond = [total - imported for total, imported in measured]
    value = statistics.median(beyond)
    baseline = statistics.median(imported for _, imported in measured)
    note = (
        "from its process start to its first finished step, less the baseline: the imports of its model; "
        f"median of {[round(seconds, 2) for seconds in beyond]}"
    )
    return row_at_most("a worker joins", value, "s", 1.5, note, baseline)

"""A pod without TensorFlow whose memory is real: a parameter server that holds the bytes of a given curve in pages.

``CURVE`` names a JSON file: ``used``, ``tables`` and ``rows`` [server][moment], ``row_bytes``, and ``moment``, the file
that tells which moment it is. The pod is the trainer's own but for what it serves.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.pod.process import Pod, run_pod
from stretto_messages.base import example_of
from stretto_messages.pods import (
    ClaimBuckets,
    ClaimBucketsReply,
    GetOwnership,
    GetOwnershipReply,
    PsReported,
    TrainUnder,
    TrainUnderReply,
    WorkerReported,
)
from stretto_messages.values import StepTimes

REPORT_S = 0.1
CHUNK_BYTES = 2**20


class Growing:
    """A pod whose memory and rows follow the curve if ``role`` is ps. Workers only report progress."""

    def __init__(self, pod: Pod) -> None:
        self.pod, self.job = pod, pod.settings.job
        self.curve: dict[str, Any] = json.loads(Path(os.environ["CURVE"]).read_text())
        # one that takes the place of a killed one has a number of its own
        self.index = int(pod.settings.pod.rpartition("-")[2]) % len(self.curve["rows"])
        self.version = pod.settings.plan_version
        self.own: tuple[list[int], list[int]] = [0] * 64, [0] * 12
        self.chunks: list[bytes] = []
        self.steps = 0

    def run(self) -> int:
        self.pod.bus.serve(ClaimBuckets, self.claim)
        self.pod.bus.serve(GetOwnership, self.ownership)
        self.pod.bus.serve(TrainUnder, self.train_under)
        self.pod.ready(f"127.0.0.1:{9000 + self.index}")
        ps = self.pod.settings.pod.startswith("ps-")
        while not self.pod.leaving.wait(REPORT_S):
            moment = self.moment()
            if ps:
                self.hold(self.curve["used"][self.index][moment])
            self.pod.bus.report(self.server(moment) if ps else self.worker())
        return 0

    def moment(self) -> int:
        return int(Path(self.curve["moment"]).read_text())

    def hold(self, wanted_bytes: int) -> None:
        """Allocate or free pages until the given bytes are resident."""
        missing = wanted_bytes - self.pod.usage.measure().memory_bytes
        for _ in range(missing // CHUNK_BYTES):
            self.chunks.append(b"\1" * CHUNK_BYTES)
        for _ in range(min(-missing // CHUNK_BYTES, len(self.chunks))):
            self.chunks.pop()

    def claim(self, request: ClaimBuckets) -> ClaimBucketsReply:
        self.own = [int(b in request.buckets) for b in range(64)], [int(s in request.slices) for s in range(12)]
        return ClaimBucketsReply(job=self.job, accepted=True)

    def ownership(self, _: GetOwnership) -> GetOwnershipReply:
        buckets, slices = self.own
        rows = [self.curve["rows"][self.index][self.moment()] * own // max(1, sum(buckets)) for own in buckets]
        return GetOwnershipReply(job=self.job, buckets=tuple(buckets), slices=tuple(slices), bucket_rows=tuple(rows))

    def train_under(self, request: TrainUnder) -> TrainUnderReply:
        self.version = request.plan_version
        return TrainUnderReply(job=self.job)

    def server(self, moment: int) -> PsReported:
        rows, tables = (self.curve[name][self.index][moment] for name in ("rows", "tables"))
        kept = {"categories": rows, "row_bytes": self.curve["row_bytes"], "table_bytes": tables}
        done = {"updates": 1, "applied_samples_total": 0, "buckets": sum(self.own[0])}
        return replace(example_of(PsReported), **kept, **done, **self.used())

    def worker(self) -> WorkerReported:
        self.steps += 1
        done = {"plan_version": self.version, "steps": 1, "steps_total": self.steps, "samples_total": self.steps}
        times = StepTimes(emb_s=0.0, grad_s=0.01, upd_s=0.0, sync_s=0.0)
        of_step = {"step_time_s": REPORT_S / 2, "longest_gap_s": REPORT_S, "times": times}
        return replace(example_of(WorkerReported), **done, **of_step, **self.used())

    def used(self) -> dict[str, Any]:
        """Return the fields of a report that those of servers and workers share."""
        settings, used = self.pod.settings, self.pod.usage.measure()
        told = {"job": self.job, "pod": settings.pod, "ended_at_s": time.time(), "window_s": REPORT_S}
        memory = {"memory_used_bytes": used.memory_bytes, "memory_limit_bytes": settings.memory_bytes}
        return {**told, **memory, "cpu_used_cores": 0.1, "cpu_limit_cores": settings.cpu_cores}


run_pod("ps" if os.environ["STRETTO_POD"].startswith("ps-") else "worker", lambda pod: Growing(pod).run())

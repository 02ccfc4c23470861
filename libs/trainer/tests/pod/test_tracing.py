"""Spans of pods."""

from __future__ import annotations

import json
import random
from pathlib import Path

from stretto.pod.tracing import PodTracing


def test_workers_that_seed_alike_have_spans_of_their_own(tmp_path: Path) -> None:
    for pod in ("worker-0", "worker-1"):
        random.seed(7)  # as a training script may do
        tracing = PodTracing("job", pod, tmp_path)
        with tracing.span("train shard"):
            pass
        tracing.close()
    lines = [line for file in (tmp_path / "spans").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len({json.loads(line)["span_id"] for line in lines}) == 2

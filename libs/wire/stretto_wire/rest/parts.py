"""Names of the parts of a job's view, by which a client asks for no more than it shows."""

from __future__ import annotations

from typing import Literal, get_args

Part = Literal[
    "head", "spec", "data", "feeding", "learning", "shards", "pods", "throughput", "decisions", "refusals", "requests",
    "replacements", "phases", "migrations", "resizes", "losses", "checkpoints", "model", "fits", "front", "forecast",
    "forecasts", "memory", "books",
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)

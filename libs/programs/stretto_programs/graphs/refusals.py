"""Reasons for which a step stays whole, in the words that `stretto run` and `stretto explain-graph` share."""

from __future__ import annotations

from typing import Any

CHECKPOINTED = (
    "the program checkpoints the iterator of its data set: a position saved by it would run ahead of the steps"
)
LOOP = "the function loops over a data set itself: the loop is one operation of the step, and stays whole"
EAGER = "the step runs eagerly, operation by operation: it has no graph"


def of_strategy(strategy: Any) -> str:
    """Return why a step stays whole under a strategy of tf.distribute; "" without a strategy."""
    name = type(strategy).__name__
    if strategy.num_replicas_in_sync > 1:
        return f"{name} runs the step on several devices"
    return "" if "Default" in name else f"{name} wraps data set and step; with a single device it can be left out"

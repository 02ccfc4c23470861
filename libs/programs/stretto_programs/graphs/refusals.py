"""Reasons for which a step stays whole, in the words that `stretto run` and `stretto explain-graph` share."""

from __future__ import annotations

from typing import Any

CHECKPOINTED = (
    "the program checkpoints the iterator of its data set: a position saved by it would run ahead of the steps"
)
LOOP = "the function loops over a data set itself: the loop is one operation of the step, and stays whole"
EAGER = "the step runs eagerly, operation by operation: it has no graph"


def of_strategy(strategy: Any) -> str:
    """Return why a step stays whole under a strategy of tf.distribute; "" if the strategy has a single device."""
    if strategy.num_replicas_in_sync > 1 or "Default" not in type(strategy).__name__:
        return f"{type(strategy).__name__} runs the step on several devices"
    return ""

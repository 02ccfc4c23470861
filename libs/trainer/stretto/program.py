"""A pod's model, built from its specification. This is where a pod imports TensorFlow."""

from __future__ import annotations

import gc
import logging
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .pod import Pod

if TYPE_CHECKING:
    from .model import Program

log = logging.getLogger("stretto.program")


def build_program(pod: Pod) -> Program:
    """Import TensorFlow under the pod's limits and build the user's model. Raises ModelRefused."""
    begun = time.monotonic()
    tf = _tensorflow()
    imported = time.monotonic()
    tf.config.threading.set_intra_op_parallelism_threads(pod.settings.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, pod.settings.threads))
    from .entry import check_reads_partitions, load
    from .model import Program

    ready = time.monotonic()
    pod.detail("building the model")
    spec = pod.settings.spec.model
    stated = spec.model_fields_set
    task = load(spec)
    if pod.settings.spec.dataset.partitioned:
        check_reads_partitions(task)
    program = Program(
        task,
        optimizer=spec.optimizer,
        learning_rate=spec.learning_rate,
        embedding_dim=spec.embedding_dim if "embedding_dim" in stated else None,
        seed=pod.settings.spec.dataset.seed,
    )
    log.info(
        "TensorFlow imported in %.2f s, graphs in %.2f s, %s built in %.2f s: %d dense parameters, rows of %s floats",
        imported - begun,
        ready - imported,
        spec.entry,
        time.monotonic() - ready,
        program.layout.dense_size,
        [table.dimension for table in program.layout.tables],
    )
    return program


def _tensorflow() -> Any:
    """Import TensorFlow, and Keras with it, in 2.9 s of CPU time instead of 4.1 s (two cores, quiet).

    Keras imports matplotlib for its own plots where it is installed, and the collector walks the modules again and
    again. A pod does without Keras' plots; a model may import matplotlib afterwards. What is imported now is never
    freed, so the collector need not look at it again.
    """
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    hidden = "matplotlib" not in modules
    if hidden:
        modules["matplotlib"] = None
    gc.disable()
    try:
        import tensorflow as tf
    finally:
        if hidden:
            del modules["matplotlib"]
        gc.enable()
        gc.freeze()
    return tf

"""CPU of the operations of a step, measured by TensorFlow's profiler in a few runs.

Operations that TensorFlow's optimizer joins appear under the name of the joined operation; an operation that never
appears costs nothing. Time that the executor spends between operations is in none of them.
"""

from __future__ import annotations

import glob
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..partition.costs import Trace

STEPS = 8
TRACER_LEVEL = 3
"""Level of the profiler at which cheap operations are recorded, too."""


def trace(run: Callable[[], None], steps: int = STEPS) -> Trace:
    """Return the mean CPU of a step's operations over several runs under the profiler, after an unmeasured first run.

    If the samples end before, fewer runs count.
    """
    import tensorflow as tf

    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=TRACER_LEVEL, python_tracer_level=0, device_tracer_level=0
    )
    run()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options=options)
        try:
            traced = _repeated(run, steps)
        finally:
            tf.profiler.experimental.stop()
        found = [_parsed(path) for path in glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)]
    began_s = time.process_time()
    timed = _repeated(run, steps)
    process_us = (time.process_time() - began_s) / timed * 1e6 if timed else 0.0
    return replace(_summed(found[0], traced), process_us=process_us) if found and traced else Trace()


def _repeated(run: Callable[[], None], steps: int) -> int:
    """Run a step several times; return how many runs there were samples for."""
    import tensorflow as tf

    for done in range(steps):
        try:
            run()
        except (tf.errors.OutOfRangeError, StopIteration):
            return done
    return steps


def _parsed(path: str) -> Any:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    messages: Any = xplane_pb2
    space = messages.XSpace()
    with open(path, "rb") as file:
        space.ParseFromString(file.read())
    return space


def _summed(space: Any, steps: int) -> Trace:
    step_us: dict[str, float] = defaultdict(float)
    data_us: dict[str, list[float]] = defaultdict(list)
    for plane in space.planes:
        names = {number: each.name for number, each in plane.event_metadata.items()}
        for line in plane.lines:
            is_data = line.name.startswith("tf_data")
            for event in line.events:
                name, colon, op = names[event.metadata_id].rpartition(":")
                if not colon or name.endswith(":") or not op:  # the profiler's own events are called A::B
                    continue
                if is_data:
                    data_us[name].append(event.duration_ps / 1e6)
                else:
                    step_us[name] += event.duration_ps / 1e6 / steps
    return Trace(dict(step_us), {name: sum(each) / len(each) for name, each in data_us.items()})

"""The worker's model, built under the limits of its pod. Here a worker imports the user's code and its framework."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import replace
from typing import Any, cast

from ..build import make_program, options_of
from ..imports import lighter_imports
from ..model.entry_point import check_reads_partitions, load
from ..model.one_step import compare_steps
from ..model.program import Program
from ..pod.process import Pod

log = logging.getLogger("stretto.worker")


def build_program(pod: Pod) -> Program:
    """Import the user's code and build its model under the pod's limits. Raises ModelRefused."""
    begun = time.monotonic()
    spec, data = pod.settings.spec.model, pod.settings.spec.dataset
    has_devices = bool(pod.settings.spec.resources.workers.extended)
    if not has_devices:  # frameworks would take what they see, and with it what other pods were given
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    pod.detail("importing the model's code")
    _limit_threads(pod.settings.threads)
    with lighter_imports():
        task = load(spec)
    imported = time.monotonic()
    _limit_threads(pod.settings.threads)
    pod.detail("building the model")
    if data.partitioned:
        check_reads_partitions(task)
    program = make_program(task, replace(options_of(pod.settings.spec), has_devices=has_devices))
    _limit_threads(pod.settings.threads)
    if pod.settings.index == 0:  # once for a job; a GPU adds up in other orders, and `stretto check` compares on cores
        pod.detail("comparing a step with the framework's own")
        begun_s = time.monotonic()
        left_out = "steps on devices are compared by `stretto check` alone" if has_devices else compare_steps(program)
        told = left_out or f"it is that of {program.framework} alone"
        log.info("a step was compared in %.2f s: %s", time.monotonic() - begun_s, told)
    log.info("every parameter is updated by %s", program.updates.told())
    log.info(
        "%s imported in %.2f s, built by %s in %.2f s: %d dense parameters, rows of %s floats",
        spec.entry,
        imported - begun,
        type(program).__name__,
        time.monotonic() - imported,
        program.layout.dense_size,
        [table.dimension for table in program.layout.tables],
    )
    return program


def _limit_threads(threads: int) -> None:
    """Let each framework compute with this many threads. TensorFlow reads the variables when it first computes."""
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads)
    os.environ["TF_NUM_INTEROP_THREADS"] = str(max(2, threads))
    torch = cast("Any", sys.modules.get("torch"))
    if torch is not None:
        torch.set_num_threads(threads)

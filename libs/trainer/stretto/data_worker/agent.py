"""The agent of a data worker: it starts lanes, names them to the workers of its job and reports their work."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

from stretto_messages.pods import DataWorkerReported
from stretto_plane import Listener, Message, Peer

from ..batches.preparation import REQUEST_BYTES_MAX, BatchesPrepared, Kind
from ..errors import DataError, ModelRefused
from ..model.form import reading_of_json
from ..model.reading import Reading
from ..pod.process import EXIT_OK, Pod, Usage, run_pod
from .lane_pool import LanePool

log = logging.getLogger("stretto.data_worker")

_WATCH_S = 0.2
_SERVES_S = 2.0
"""Seconds that a worker which asks for lanes waits for the first lane that serves: less than its connection waits."""


class DataWorker:
    """A data worker pod: an address at which workers ask for lanes, and a lane for each of its cores.

    Lanes start when the first worker says how batches are read, for which most need neither model nor framework.
    """

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        settings = pod.settings
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._lanes: LanePool | None = None
        self._usage = Usage(with_children=True)
        self._told = BatchesPrepared()
        self._listener = Listener(
            settings.plane_address,
            self._handle,
            pod.access.key,
            size_bytes_max=REQUEST_BYTES_MAX,
            encrypted=pod.access.encrypted,
        )
        pod.report_by(self._report)
        pod.ready(self._listener.address)

    def run(self) -> int:
        """Serve until asked to leave. Raises ModelRefused."""
        try:
            while not self._pod.leaving.wait(_WATCH_S):
                if self._lanes is not None and self._lanes.refused:
                    raise ModelRefused(self._lanes.refused)
        finally:
            self._listener.close()
            if self._lanes is not None:
                self._lanes.close()
        return EXIT_OK

    def _lanes_for(self, reading: Reading | None) -> LanePool:
        """Return the lanes, which the first caller starts. Raises DataError."""
        with self._lock:
            if self._lanes is None:
                settings = self._pod.settings
                count = max(1, math.floor(settings.cpu_cores))
                self._reading = reading
                self._lanes = LanePool(settings.spec, count, settings.lane_address, self._pod.access, reading)
            elif reading != self._reading:
                raise DataError(f"lanes read batches by {self._reading}, a worker asks for {reading}")
            return self._lanes

    def _report(self) -> None:
        lanes = self._lanes
        used, work = self._usage.measure(), self._told if lanes is None else lanes.work
        done = work.since(self._told)
        self._pod.bus.report(
            DataWorkerReported(
                job=self._pod.settings.job,
                pod=self._pod.settings.pod,
                ended_at_s=time.time(),
                window_s=used.window_s,
                lanes=0 if lanes is None else len(lanes.addresses),
                batches=done.batches,
                busy_s=done.busy_s,
                cpu_used_cores=used.cpu_cores,
                cpu_limit_cores=self._pod.settings.cpu_cores,
                memory_used_bytes=used.memory_bytes,
                memory_limit_bytes=self._pod.settings.memory_bytes,
            )
        )
        self._told = work

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        if message.kind != Kind.LANES:
            raise DataError(f"a request of kind {message.kind} is refused: ask for {Kind.LANES.name}")
        lanes = self._lanes_for(reading_of_json(b"".join(message.parts)))
        return Kind.LANES, [json.dumps(lanes.until_one_serves(_SERVES_S)).encode()]


def main() -> None:
    run_pod("data", lambda pod: DataWorker(pod).run())

"""The agent of a data worker: it starts lanes, names them to the workers of its job and reports their work."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from stretto_messages.pods import DataWorkerReported
from stretto_plane import Listener, Message, Peer

from ..batches.preparation import REQUEST_BYTES_MAX, BatchesPrepared, Kind
from ..errors import DataError, ModelRefused
from ..pod.process import EXIT_OK, Pod, Usage, run_pod
from .lane_pool import LanePool

log = logging.getLogger("stretto.data_worker")

_WATCH_S = 0.2


class DataWorker:
    """A data worker pod: a lane for each of its cores, and an address at which workers ask for the lanes."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        settings = pod.settings
        pod.detail("importing the model's code")
        self._listener = Listener(
            settings.plane_address,
            self._handle,
            pod.access.key,
            size_bytes_max=REQUEST_BYTES_MAX,
            encrypted=pod.access.encrypted,
        )
        self._lanes = LanePool(
            settings.spec, max(1, math.floor(settings.cpu_cores)), settings.lane_address, pod.access, self._changed
        )

        self._usage = Usage(with_children=True)
        self._told = BatchesPrepared()
        pod.report_by(self._report)

    def run(self) -> int:
        """Serve until asked to leave. Raises ModelRefused."""
        try:
            while not self._pod.leaving.wait(_WATCH_S):
                if self._lanes.refused:
                    raise ModelRefused(self._lanes.refused)
        finally:
            self._listener.close()
            self._lanes.close()
        return EXIT_OK

    def _changed(self, addresses: tuple[str, ...]) -> None:
        log.info("%d lanes serve", len(addresses))
        if addresses:
            self._pod.ready(self._listener.address)

    def _report(self) -> None:
        used, work = self._usage.measure(), self._lanes.work
        done = work.since(self._told)
        self._pod.bus.report(
            DataWorkerReported(
                job=self._pod.settings.job,
                pod=self._pod.settings.pod,
                ended_at_s=time.time(),
                window_s=used.window_s,
                lanes=len(self._lanes.addresses),
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
        return Kind.LANES, [json.dumps(self._lanes.addresses).encode()]


def main() -> None:
    run_pod("data", lambda pod: DataWorker(pod).run())

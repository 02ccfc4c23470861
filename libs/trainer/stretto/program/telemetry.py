"""The reports of a worker with a program: its steps, and the use of the machine by both."""

from __future__ import annotations

import threading
import time

from stretto_messages.pods import TrainUnder, TrainUnderReply, WorkerReported
from stretto_messages.values import StepTimes

from ..items import Took
from ..pod.process import Pod, Usage
from ..worker.step_timer import StepTimer


class Telemetry:
    """The reports of one worker, under the plan that it was told last."""

    def __init__(self, pod: Pod) -> None:
        self.meter = StepTimer()
        self._pod = pod
        self._plan_version = pod.settings.plan_version
        self._cpu_cores = pod.settings.cpu_cores
        self._lock = threading.Lock()
        self._told, self._last = Took(), Took()
        """Items of the program as told since the last report, and as told before."""
        pod.usage = Usage(runs_program=True)

    def took(self, told: Took) -> None:
        """Take note of what the program says of its items."""
        with self._lock:
            before = self._told
            self._told = told._replace(
                items=before.items + told.items,
                away=before.away + told.away,
                waited_s=before.waited_s + told.waited_s,
            )

    def _taken(self) -> Took:
        """Return what the program said since the last report; where it said nothing, what it said before."""
        with self._lock:
            if self._told.items:
                self._last, self._told = self._told, Took()
            return self._last

    def begin(self, address: str = "") -> None:
        """Report from now on. ``address``: where other workers reach this one."""
        self._pod.bus.serve(TrainUnder, self._train_under)
        self._pod.ready(address)
        self._pod.report_by(self._report)

    def _report(self) -> None:
        used, window, settings = self._pod.usage.measure(), self.meter.window(), self._pod.settings
        items, batch = self._taken(), settings.spec.dataset.batch_size
        batches = max(items.items, 1) / batch
        report = WorkerReported(
            job=settings.job,
            pod=settings.pod,
            plan_version=self._plan_version,
            ended_at_s=time.time(),
            window_s=used.window_s,
            steps=window.steps,
            steps_total=window.steps_total,
            samples_total=window.samples_total,
            step_time_s=window.step_s,
            longest_gap_s=window.longest_gap_s,
            times=StepTimes(  # one step is one time, but for its items
                emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0, read_s=min(items.waited_s / batches, window.step_s)
            ),
            prepared_elsewhere=items.away / max(items.items, 1),
            prepare_s=items.own_s * batch,
            prepare_cpu_s=items.own_cpu_s * batch,
            cpu_used_cores=used.cpu_cores,
            cpu_limit_cores=self._cpu_cores,
            memory_used_bytes=used.memory_bytes,
            memory_limit_bytes=settings.memory_bytes,
        )
        self._pod.bus.report(report)

    def _train_under(self, request: TrainUnder) -> TrainUnderReply:
        self._plan_version = request.plan_version
        self._cpu_cores = request.cpu_cores
        return TrainUnderReply(job=request.job)

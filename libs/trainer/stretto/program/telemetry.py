"""The reports of a worker with a program: its steps, and the use of the machine by both."""

from __future__ import annotations

import time

from stretto_messages.pods import TrainUnder, TrainUnderReply, WorkerReported
from stretto_messages.values import StepTimes

from ..pod.process import Pod, Usage
from ..worker.step_timer import StepTimer


class Telemetry:
    """The reports of one worker, under the plan that it was told last."""

    def __init__(self, pod: Pod) -> None:
        self.meter = StepTimer()
        self._pod = pod
        self._plan_version = pod.settings.plan_version
        self._cpu_cores = pod.settings.cpu_cores
        pod.usage = Usage(with_children=True)

    def begin(self, address: str = "") -> None:
        """Report from now on. ``address``: where other workers reach this one."""
        self._pod.bus.serve(TrainUnder, self._train_under)
        self._pod.ready(address)
        self._pod.report_by(self._report)

    def _report(self) -> None:
        used, window, settings = self._pod.usage.measure(), self.meter.window(), self._pod.settings
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
            times=StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0),  # one step is one time
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

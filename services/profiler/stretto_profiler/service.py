"""The profiler as a service."""

from __future__ import annotations

from typing import Any, ClassVar

from stretto_core.algorithms import DETECT
from stretto_core.profiler.machine import ProfilerMachine
from stretto_core.profiler.pace import report_interval_s
from stretto_core.profiler.state import JobOpened, ProfilerState, ProfilingRules
from stretto_messages.base import Message
from stretto_messages.profiler import GetReportIntervalReply
from stretto_runtime import Meta, Service
from stretto_runtime.algorithms import algorithm
from stretto_runtime.settings import machine_settings
from stretto_wire.contract.submission import JobSubmitted

from .settings import ProfilerSettings


class Profiler(Service[ProfilerSettings, ProfilerState, ProfilerMachine]):
    """Publishes a profile of every job in each window, and names stragglers and hot parameter servers."""

    name = "profiler"
    version = ProfilerMachine.version
    settings_type = ProfilerSettings
    state_types: ClassVar[dict[str, type]] = {"job": ProfilerState}

    def __init__(self, settings: ProfilerSettings) -> None:
        super().__init__(settings)
        self._rules = machine_settings(ProfilingRules, settings)
        self._detector = algorithm(DETECT, settings.algorithm, "STRETTO_PROFILER_ALGORITHM")

    def machine(self, key: str, state: ProfilerState | None) -> ProfilerMachine:
        return ProfilerMachine(state, self._rules, self._detector)

    def deciding(self) -> dict[str, Any]:
        """Leave out the pace of telemetry: windows follow from the reports alone."""
        return {name: value for name, value in super().deciding().items() if name != "reports_per_s"}

    def answer(self, query: Message, machine: ProfilerMachine | None) -> Message:
        """Return the interval of reports that the number of pods in the installation allows."""
        interval_s = report_interval_s(self.reporting_pods(), self.settings.reports_per_s)
        return GetReportIntervalReply(job=query.job, interval_s=interval_s)

    def to_event(self, message: Message, meta: Meta) -> Message | JobOpened:
        """Return what the machine needs to know of a new job; every other message is an event as it is."""
        if isinstance(message, JobSubmitted):
            return JobOpened(message.spec.dataset.batch_size, message.spec.level == 0)
        return message

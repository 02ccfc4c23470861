"""The machine that keeps one job's throughput model fitted to what is measured (DLRover-RM §4.3, online fitting)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from stretto_messages.actuator import JobFailed
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.fitter import ModelFitted
from stretto_messages.gateway import JobCancelled
from stretto_messages.planner import HistoryMatched
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import GroupProfile, Interval, KnownModel, MeasuredConfiguration, StepTimes

from stretto_core.fitter.regression import Fitting, fit
from stretto_core.fitter.state import ConfigurationWindows, FitState, FitterSettings, Window
from stretto_core.machine import Action, Emit
from stretto_core.model.throughput import COMPONENTS, Configuration, Inputs, Measurement, is_understood

FitterEvent = ProfileMeasured | HistoryMatched | JobCompleted | JobCancelled | JobFailed

CONFIGURATIONS_KEPT = 32
LEAST_LOG_SD = 0.01
"""Least standard error of a configuration's log step time: its windows share the machine's slow drifts."""


class FitMachine:
    """Collects settled windows per configuration and refits; one per job."""

    version = 1

    def __init__(
        self, state: FitState | None = None, settings: FitterSettings | None = None, algorithm: Fitting = fit
    ) -> None:
        self.state = state or FitState()
        self.settings = settings or FitterSettings()
        self.algorithm = algorithm

    @property
    def ended(self) -> bool:
        """True while nothing is known of the job: before its first window, and after its end."""
        return not self.state.measured and not self.state.windows and self.state.similar is None

    def handle(self, event: FitterEvent, now: float) -> list[Action]:
        """Take in a window; emit the refitted model when it differs enough. A job that is over is forgotten."""
        match event:
            case ProfileMeasured() if _usable(event):
                return self._measured(event, now)
            case HistoryMatched(model=KnownModel() as known):
                self.state.similar = known if known.form == self.settings.form and is_understood(known) else None
            case JobCompleted() | JobCancelled() | JobFailed():
                self._forget()
            case _:
                pass
        return []

    def _forget(self) -> None:
        """Clear the state in place: its owner holds on to the object."""
        self.state.measured.clear()
        self.state.windows = self.state.published_version = 0
        self.state.published_step_time_s = 0.0
        self.state.similar = None

    def _measured(self, event: ProfileMeasured, now: float) -> list[Action]:
        """Refit, unless the window is known already or changes little."""
        steps = steps_of(event)
        rows, *_ = [self._remember(each, now) for each in steps]
        if rows is None:
            return []
        first = rows.seen <= self.settings.first_windows or rows.seen % self.settings.every_windows == 0
        published = self.state.published_step_time_s
        drifted = published > 0 and abs(math.log(steps[0].trained_s / published)) > self.settings.drift
        drifted |= any(self._drifted(step) for step in steps[1:])
        if not first and not drifted and event.plan_version == self.state.published_version:
            return []
        fitted = self._fit(event, now)
        self.state.published_step_time_s = fitted.measured_step_time_s
        self.state.published_of_devices = {step.configuration.device: step.trained_s for step in steps[1:]}
        self.state.published_version = event.plan_version
        return [Emit(fitted)]

    def _drifted(self, step: Step) -> bool:
        published = self.state.published_of_devices.get(step.configuration.device, 0.0)
        return published > 0 and abs(math.log(step.trained_s / published)) > self.settings.drift

    def _remember(self, step: Step, now: float) -> ConfigurationWindows | None:
        """Add the window and return those of its configuration; None if it was there already."""
        configuration, window = step.configuration, Window(now, step.trained_s, step.components_s)
        rows = next((known for known in self.state.measured if known.configuration == configuration), None)
        if rows is None:
            rows = ConfigurationWindows(configuration)
        elif window in rows.windows:
            return None
        else:
            self.state.measured.remove(rows)
        self.state.measured.append(rows)  # the latest last: the oldest is forgotten first
        del self.state.measured[:-CONFIGURATIONS_KEPT]
        rows.windows.append(window)
        del rows.windows[: -self.settings.windows_kept]
        rows.seen += 1
        self.state.windows += 1
        return rows

    def _fit(self, event: ProfileMeasured, now: float) -> ModelFitted:
        aggregated = [aggregate(rows, now, self.settings.half_life_s) for rows in self.state.measured]
        similar = self.state.similar if len(aggregated) <= self.settings.few_configurations else None
        form = self.settings.form
        model = self.algorithm([measured for measured, _ in aggregated], form, similar=similar)
        configuration = steps_of(event)[0].configuration
        here = next(known for measured, known in aggregated if measured.configuration == configuration)
        x = Inputs.of([configuration])
        low, high = model.interval_s(x)
        assert 0 < low[0] <= high[0], f"a step takes {low[0]} to {high[0]} s by the fitted model"
        return ModelFitted(
            job=event.job,
            form=form,
            coefficients=model.coefficients,
            overlap=model.overlap,
            log_sd=model.noise_sd,
            covariance=model.covariance,
            degrees_of_freedom=model.dof,
            measured=tuple(known for _, known in aggregated),
            rmsle=model.rmsle,
            points=self.state.windows,
            configurations=len(aggregated),
            unidentified=model.unidentified,
            plan_version=event.plan_version,
            plan=event.plan,
            batch_size=event.batch_size,
            measured_step_time_s=here.step_time_s,
            predicted_step_time_s=float(model.step_time_s(x)[0]),
            predicted_interval_s=Interval(low=float(low[0]), high=float(high[0])),
        )


def _usable(event: ProfileMeasured) -> bool:
    """Only a settled window with steps says anything about its plan; one of stages is not of whole steps."""
    positive = math.isfinite(event.step_time_s) and event.step_time_s > 0
    return event.settled and positive and event.plan.workers > 0 and event.plan.stages == 1


LEAST_PART = 0.01
"""Least part of a step that is training, whatever the wait is: medians of both need not be of the same worker."""


class Step(NamedTuple):
    """Step of the workers that have the same devices, in one window."""

    configuration: Configuration
    trained_s: float
    components_s: dict[str, float]


def steps_of(event: ProfileMeasured) -> list[Step]:
    """Return the steps of a window, the workers on cores first; a plan without groups has one step."""
    told = event.groups or (event,)
    return [
        Step(
            Configuration.of(event.plan, event.batch_size, each.device if isinstance(each, GroupProfile) else ""),
            trained_s(each),
            components_of(each.times),
        )
        for each in told
    ]


def trained_s(event: ProfileMeasured | GroupProfile) -> float:
    """Return the step time T without the wait for its batch, which no term of the model explains (GoldMiner §3.4)."""
    return max(event.step_time_s - event.times.read_s, LEAST_PART * event.step_time_s)


def components_of(times: StepTimes) -> dict[str, float]:
    """Return the components of a step by the names of ``COMPONENTS``, seconds; none if nothing measured them."""
    components = {"emb": times.emb_s, "grad": times.grad_s, "upd": times.upd_s, "sync": times.sync_s}
    return components if any(components.values()) else {}


def aggregate(rows: ConfigurationWindows, now: float, half_life_s: float) -> tuple[Measurement, MeasuredConfiguration]:
    """One robust measurement of a configuration: weighted medians, later windows counting more."""
    decay = [0.5 ** (max(now - window.at_s, 0.0) / half_life_s) for window in rows.windows]
    times = [window.step_time_s for window in rows.windows]
    step_time_s = weighted_median(times, decay)
    effective = sum(decay)
    spread = 1.4826 * weighted_median([abs(math.log(time / step_time_s)) for time in times], decay)
    having = [(window, weight) for window, weight in zip(rows.windows, decay, strict=True) if window.components_s]
    components = {
        name: weighted_median([w.components_s.get(name, 0.0) for w, _ in having], [weight for _, weight in having])
        for name in COMPONENTS
        if any(name in window.components_s for window, _ in having)
    }
    weight = max(2 * effective / (effective + 1), 0.05)  # windows of one configuration share its misfit
    # the spread of one or two windows says nothing: the noise prior of the model stands in for it
    noise = spread if len(times) >= 4 else max(spread, 0.05)
    log_sd = max(1.25 * noise / math.sqrt(max(effective, 0.25)), LEAST_LOG_SD)
    return (
        Measurement(rows.configuration, step_time_s, weight, components),
        MeasuredConfiguration(
            workers=rows.configuration.workers,
            ps=rows.configuration.ps,
            worker_cpu_cores=rows.configuration.worker_cpu_cores,
            ps_cpu_cores=rows.configuration.ps_cpu_cores,
            batch_size=rows.configuration.batch_size,
            device=rows.configuration.device,
            mixed=rows.configuration.mixed,
            step_time_s=step_time_s,
            windows=rows.seen,
            log_sd=log_sd,
        ),
    )


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The value at which half of the weight is reached; the mean of two where it is reached exactly."""
    order = sorted(range(len(values)), key=values.__getitem__)
    reached = list(accumulate(weights[index] for index in order))
    half = reached[-1] / 2
    at = bisect_left(reached, half * (1 - 1e-12))
    if at + 1 < len(order) and abs(reached[at] - half) <= 1e-12 * half:
        return (values[order[at]] + values[order[at + 1]]) / 2
    return values[order[at]]

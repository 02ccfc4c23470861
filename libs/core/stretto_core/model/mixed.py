"""Workers of one job on devices of several types, or in stages: how fast they train together, and how sure that is.

Shards are leased and servers are asynchronous: each worker trains at its own pace, so rates add up. Where steps pass
stages, the slowest one bounds them (:mod:`stretto_core.model.stages`): a later stage takes what a worker computes, the
first one what a step takes beside that, whoever pulls and pushes (:meth:`FittedModel.part_s`), and what the rows take
to cross.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from stretto_messages.values import Plan, WorkerGroup

from stretto_core.model.stages import stage_times_s
from stretto_core.model.throughput import Array, Configuration, FittedModel, Inputs
from stretto_core.model.types import DeviceType

CUT_SD = 0.15
"""Standard deviation of the log of a stage's time while no stage of the job was measured: the error that predictions
of stages may have on average."""


@dataclass(frozen=True, slots=True)
class StageRatio:
    """Time of a stage's step on one type of devices as it was measured, as a multiple of what the model predicts."""

    stage: int
    device: str
    ratio: float


class GroupRate(NamedTuple):
    """Samples per second of a group of workers, and the configurations as they see them.

    ``guess_sd``: standard deviation of the log of the speed of devices on which no worker of the job was measured.
    """

    x: Inputs
    rate: Array
    guess_sd: float


class StageRate(NamedTuple):
    """A group of workers of a stage, with the time of a step of one of them and the share that interruptions cost."""

    stage: int
    device: str
    x: Inputs
    workers: int
    step_s: float
    lost: float
    guess_sd: float


@dataclass(frozen=True, slots=True)
class MixedWorkers:
    """The workers of a job by its fitted model. ``back_s``: time until another one trains after one was taken away.

    ``stage_ratios``: what measured stages of the job took, beside the model.
    """

    model: FittedModel
    batch_size: int
    devices: tuple[DeviceType, ...] = ()
    back_s: float = 0.0
    stage_ratios: tuple[StageRatio, ...] = ()

    def rates(self, x: Inputs, groups: Iterable[WorkerGroup]) -> Iterator[GroupRate]:
        """Return the rate of the workers on cores and of each group, n m / T (HeterPS Eq. 1), less interruptions.

        ``x.workers`` includes the groups. Devices that were never measured are taken for as many cores of the cluster,
        times their speed.
        """
        of_groups = tuple(groups)
        on_devices = sum(group.workers for group in of_groups)
        on_cores, supply = x.workers - on_devices, self.model.supply
        if np.any(on_cores > 0):
            step_s = supply.slowed_s(self.model.trained_s(x), x, on_devices)
            yield GroupRate(x, on_cores * self.batch_size / step_s, 0.0)
        for group in of_groups:
            device, own = self._type_of(group), self._inputs_of(x, group)
            rate = group.workers * self.batch_size / supply.slowed_s(self.model.trained_s(own), x, on_devices)
            yield GroupRate(own, (1 - device.lost(self.back_s)) * rate, self._guess_sd(device))

    def _guess_sd(self, device: DeviceType) -> float:
        return 0.0 if device.name in self.model.devices else device.speed_log_sd

    def _inputs_of(self, x: Inputs, group: WorkerGroup) -> Inputs:
        shape, known = (1,) * x.workers.ndim, group.device in self.model.devices
        cores = group.cpu_cores * (1.0 if known else self._type_of(group).speed)
        named = group.device if known else ""
        return replace(x, device=np.full(shape, named), worker_cpu_cores=np.full(shape, cores))

    def stages(self, plan: Plan) -> Iterator[StageRate]:
        """Return the groups of the plan's workers by their stages, each with the time of a step of one of them."""
        reading = sum(count for place, count in plan.worker_places.items() if not place.stage)
        x = Inputs.of([replace(Configuration.of(plan, self.batch_size), workers=reading)])
        least_s = float(self.model.supply.step_time_s(x, reading - plan.cpu_workers)[0])
        if plan.cpu_workers:
            own_s = max(self._scaled(0, "", self._reading_s(x)), least_s)
            yield StageRate(0, "", x, plan.cpu_workers, own_s, 0.0, 0.0)
        for group in plan.groups:
            device, own = self._type_of(group), self._inputs_of(x, group)
            if group.stage:
                own_s = self._scaled(group.stage, group.device, self.model.part_s(own, computes=True))
            else:
                own_s = max(self._scaled(0, group.device, self._reading_s(own)), least_s)
            guess_sd = self._guess_sd(device) if group.stage else 0.0
            yield StageRate(group.stage, group.device, own, group.workers, own_s, device.lost(self.back_s), guess_sd)

    def _reading_s(self, x: Inputs) -> Array:
        """Return the time that a step of a worker of stage 0 takes beside waiting: its rows cross to the next stage."""
        return self.model.part_s(x, computes=False) + self.model.crossing_s(x)

    def _scaled(self, stage: int, device: str, step_s: Array) -> float:
        ratios = (each.ratio for each in self.stage_ratios if (each.stage, each.device) == (stage, device))
        return float(step_s[0]) * next(ratios, 1.0)

    def stage_times_s(self, plan: Plan) -> tuple[float, ...]:
        """Return tau_i of each stage of the plan, in seconds."""
        return stage_times_s(
            (group.stage, group.workers * (1 - group.lost), group.step_s) for group in self.stages(plan)
        )

    def _type_of(self, group: WorkerGroup) -> DeviceType:
        """Return the type of the group; a type that the cluster has lost has no known price and no interruptions."""
        known = (device for device in self.devices if device.name == group.device)
        return next(known, DeviceType(group.device, 0.0, 0, group.cpu_cores, group.memory_bytes))

    def kept(self, plan: Plan) -> float:
        """Return the share of the plan's speed that interruptions of its devices leave."""
        if not any(self._type_of(group).interruptions_per_hour for group in plan.groups):
            return 1.0
        return self.throughput(plan) / replace(self, back_s=0.0).throughput(plan)

    def throughput(self, plan: Plan) -> float:
        """Return the predicted samples per second of all workers."""
        if plan.stages > 1:
            return self.batch_size / max(self.stage_times_s(plan))
        x = Inputs.of([Configuration.of(plan, self.batch_size)])
        return sum(float(group.rate[0]) for group in self.rates(x, plan.groups))

    def log_sd(self, plans: Sequence[Plan]) -> Array:
        """Return the standard deviation of the log of each plan's throughput.

        Errors of a plan's groups add up as if they were one: the groups share all terms but their own computing.
        """
        alone = [Configuration.of(plan, self.batch_size) for plan in plans if not plan.groups]
        of_alone = iter(self.model.log_sd(Inputs.of(alone)) if alone else ())
        return np.array([self._mixed_log_sd(plan) if plan.groups else next(of_alone) for plan in plans])

    def _mixed_log_sd(self, plan: Plan) -> float:
        if plan.stages > 1:
            return self._staged_log_sd(plan)
        x = Inputs.of([Configuration.of(plan, self.batch_size)])
        groups = [*self.rates(x, plan.groups)]
        total = sum(float(group.rate[0]) for group in groups)
        errors = [float(self.model.log_sd(group.x)[0]) + group.guess_sd for group in groups]
        return sum(float(group.rate[0]) / total * error for group, error in zip(groups, errors, strict=True))

    def _staged_log_sd(self, plan: Plan) -> float:
        """Return by how much the slowest stage is slower if each takes one standard deviation longer, in logs."""
        times_s = self.stage_times_s(plan)
        sds = [0.0] * plan.stages
        for group in self.stages(plan):
            sd = float(self.model.part_log_sd(group.x, computes=group.stage > 0)[0]) + group.guess_sd
            sds[group.stage] = max(sds[group.stage], sd)
        longer_s = max(time_s * math.exp(sd) for time_s, sd in zip(times_s, sds, strict=True))
        return math.log(longer_s / max(times_s)) + (0.0 if self.stage_ratios else CUT_SD)

"""Workers of one job on devices of several types: how fast they train together, and how sure that is.

Shards are leased and servers are asynchronous: each worker trains at its own pace, so rates add up, while the slowest
stage bounds a pipeline (HeterPS Eq. 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from stretto_messages.values import Plan, WorkerGroup

from stretto_core.model.throughput import Array, Configuration, FittedModel, Inputs
from stretto_core.model.types import DeviceType

GUESSED_SD = 0.7
"""Standard deviation of the log of a step time on devices that no worker of the job has had: a factor of two."""


class GroupRate(NamedTuple):
    """Samples per second of a group of workers, and the configurations as they see them.

    ``guessed``: no worker of the job was measured on its devices.
    """

    x: Inputs
    rate: Array
    guessed: bool


@dataclass(frozen=True, slots=True)
class MixedWorkers:
    """The workers of a job by its fitted model. ``back_s``: time until another one trains after one was taken away."""

    model: FittedModel
    batch_size: int
    devices: tuple[DeviceType, ...] = ()
    back_s: float = 0.0

    def rates(self, x: Inputs, groups: Iterable[WorkerGroup]) -> Iterator[GroupRate]:
        """Return the rate of the workers on cores and of each group, n m / T (HeterPS Eq. 1), without interruptions.

        ``x.workers`` includes the groups. Devices that were never measured are taken for as many cores of the cluster.
        """
        of_groups = tuple(groups)
        on_devices = sum(group.workers for group in of_groups)
        on_cores, least_s = x.workers - on_devices, self.model.supply.step_time_s(x, on_devices)
        if np.any(on_cores > 0):
            yield GroupRate(x, on_cores * self.batch_size / np.maximum(self.model.trained_s(x), least_s), False)
        for group in of_groups:
            device, guessed = self._type_of(group), group.device not in self.model.devices
            cores = group.cpu_cores * (device.speed if guessed else 1.0)
            shape = (1,) * x.workers.ndim
            own = replace(
                x,
                device=np.full(shape, "" if guessed else group.device),
                worker_cpu_cores=np.full(shape, cores),
            )
            rate = group.workers * self.batch_size / np.maximum(self.model.trained_s(own), least_s)
            yield GroupRate(own, (1 - device.lost(self.back_s)) * rate, guessed)

    def _type_of(self, group: WorkerGroup) -> DeviceType:
        """Return the type of the group; a type that the cluster has lost has no known price and no interruptions."""
        known = (device for device in self.devices if device.name == group.device)
        return next(known, DeviceType(group.device, 0.0, 0, group.cpu_cores, group.memory_bytes))

    def throughput(self, plan: Plan) -> float:
        """Return the predicted samples per second of all workers."""
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
        x = Inputs.of([Configuration.of(plan, self.batch_size)])
        groups = [*self.rates(x, plan.groups)]
        total = sum(float(group.rate[0]) for group in groups)
        errors = [float(self.model.log_sd(group.x)[0]) + GUESSED_SD * group.guessed for group in groups]
        return sum(float(group.rate[0]) / total * error for group, error in zip(groups, errors, strict=True))

"""Devices of one machine that pods get: which ones are free, and how a pod learns of its own.

Kubernetes hands out devices by itself. For processes and containers the backend does: it counts those of the pods that
run, which it reads where they are, so that it is exact after a restart too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stretto_messages.values import Extended
from stretto_runtime import SettingsFault
from stretto_runtime.settings import DEVICE_TYPES_VARIABLE, EXTENDED_VARIABLE

from ..backend import BackendError, NoRoom
from ..settings import ActuatorSettings

GPU = "nvidia.com/gpu"
"""The resource whose devices programs of CUDA and Docker's engine know by their numbers."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
RUNTIME_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable by which NVIDIA's runtime of containers puts GPUs into one, whether or not a pod asked for any. Images
of CUDA set it to all, and a job could."""
NO_GPUS = "void"
"""The value of it that gives none."""
VARIABLE = "STRETTO_ACTUATOR_DEVICES"

Given = dict[str, tuple[str, ...]]
"""Devices by the name of their extended resource, such as {"nvidia.com/gpu": ("0",)}."""


@dataclass(frozen=True, slots=True)
class Devices:
    """All devices of the machine, in the order in which pods get them."""

    all: Mapping[str, tuple[str, ...]]

    def free_of(self, wanted: Extended, held: Iterable[Mapping[str, tuple[str, ...]]]) -> Given:
        """Return devices for a pod that nobody holds, the first ones of each resource.

        Raises:
            BackendError: the machine never has as many, whatever others have.
            NoRoom: other pods have them.
        """
        for name, count in wanted:
            if count > (most := len(self.all.get(name, ()))):
                raise BackendError(
                    f"{name} = {count}: this machine has {most or 'none'}; lower it in the job, or state more in "
                    f"{EXTENDED_VARIABLE}"
                )
        taken = {(name, device) for given in held for name, devices in given.items() for device in devices}
        chosen: Given = {}
        for name, count in wanted:
            there = self.all.get(name, ())
            free = [device for device in there if (name, device) not in taken]
            if count > len(free):
                raise NoRoom(f"{name} = {count}: {len(free)} of {len(there)} on this machine are free")
            chosen[name] = tuple(free[:count])
        return chosen

    def environment(self, given: Given) -> dict[str, str]:
        """Return the variables by which a process of this machine finds its devices and no others."""
        visible = {VISIBLE: ",".join(given.get(GPU, ()))} if GPU in self.all else {}
        return {**variables(given), **visible}


NO_DEVICES = Devices({})


def variables(given: Given) -> dict[str, str]:
    """Return ``STRETTO_DEVICES_<NAME>`` for each resource, as in ``STRETTO_DEVICES_NVIDIA_COM_GPU=0,1``."""
    return {
        f"STRETTO_DEVICES_{re.sub(r'[^A-Z0-9]', '_', name.upper())}": ",".join(devices)
        for name, devices in given.items()
    }


def paths(given: Given) -> tuple[str, ...]:
    """Return those of the devices that are files, such as /dev/fpga0."""
    return tuple(device for devices in given.values() for device in devices if device.startswith("/"))


def devices_of(settings: ActuatorSettings) -> Devices:
    """Return the devices that the settings state; those without names are numbered from 0.

    Units of types of devices are counted beside the extended resources that belong to no type.

    Raises:
        SettingsFault: a resource has names for fewer devices than the cluster has, or two devices have one name.
    """
    found: dict[str, tuple[str, ...]] = {}
    counts = Counter(settings.extended_resources)
    for device in settings.device_types:
        counts.update({name: device.count * each for name, each in device.extended.items()})
    for name, count in counts.items():
        named = settings.devices.get(name, tuple(map(str, range(count))))
        if len(set(named)) < count:
            raise SettingsFault(
                f"{VARIABLE}: {name} has {len(set(named))} different devices, and {EXTENDED_VARIABLE} and "
                f"{DEVICE_TYPES_VARIABLE} state {count}; name as many, or state fewer"
            )
        found[name] = named[:count]
    if unknown := sorted(settings.devices.keys() - found.keys()):
        raise SettingsFault(f"{VARIABLE}: {EXTENDED_VARIABLE} states no {unknown[0]}; state how many there are")
    return Devices(found)

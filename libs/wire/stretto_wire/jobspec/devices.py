"""Types of devices that workers may have: what the operator states of each, once for all services."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints
from stretto_messages.base import Money
from stretto_messages.values import ANY_DEVICE, DEVICE_PATTERN, TYPES_MAX, DeviceName

from ..quantities import BYTES, IN_BYTES
from .extended import PerPod
from .kubernetes import LabelKey, LabelValue, Toleration
from .part import Spec


def checked_name(name: str) -> str:
    """Return ``name`` unless it stands for all types. Raises ValueError."""
    if name == ANY_DEVICE:
        raise ValueError(f"another name than {ANY_DEVICE}, which stands for all types")
    return name


Name = Annotated[
    str, StringConstraints(pattern=DEVICE_PATTERN), AfterValidator(checked_name), Field(description="name of the type")
]


class DeviceTypeSpec(Spec):
    """A type of devices. Its units are whole: a worker on it has one, with the cores and memory that come with it."""

    name: Name
    price_per_hour: Money = Field(description="price of one unit for one hour, in the currency of all prices")
    count: int = Field(ge=0, le=10**6, description="number of units; they are counted beside the cluster's own cores")
    cpu_cores: float = Field(ge=0.001, le=1024, description="CPU cores of one unit")
    memory: Annotated[int, Field(ge=2**20, le=2**46, description=f"{BYTES}; memory of one unit"), IN_BYTES]
    speed: float = Field(
        default=1.0,
        gt=0,
        le=10**4,
        description="what a core of it computes, as a multiple of one of the cluster's own cores; a guess for the time "
        "until a worker of the job, or of a similar one before, has been measured on it",
    )
    interruptions_per_hour: float = Field(
        default=0.0, ge=0, le=3600, description="how often a unit is taken away, as spot instances are"
    )
    extended: PerPod = Field(
        default_factory=dict[str, int], description="extended resources of one unit, as in nvidia.com/gpu: 1"
    )
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=30)] = Field(
        default_factory=dict[str, str], description="labels of the nodes that have it, on Kubernetes"
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False, max_length=30)] = Field(
        default=(), description="taints of those nodes that a worker on it tolerates, as spot nodes often have one"
    )
    environment: dict[str, str] = Field(
        default_factory=dict[str, str], description="variables of a worker on it; they go before those of the job"
    )


def checked_types(types: tuple[DeviceTypeSpec, ...]) -> tuple[DeviceTypeSpec, ...]:
    """Return the types unless two have the same name. Raises ValueError."""
    names = [each.name for each in types]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"each name once; {', '.join(sorted(twice))} is there twice")
    return types


DeviceTypes = Annotated[tuple[DeviceTypeSpec, ...], Field(max_length=TYPES_MAX), AfterValidator(checked_types)]


def _names_of(asked: Any) -> Any:
    return (asked,) if asked == ANY_DEVICE else asked


DevicesAsked = Annotated[
    tuple[DeviceName, ...],
    Field(max_length=TYPES_MAX, strict=False),
    BeforeValidator(_names_of, json_schema_input_type=Literal["auto"] | list[DeviceName]),
]
"""The types that a job asks for, by their names; ``ANY_DEVICE``, which may stand alone, is all."""

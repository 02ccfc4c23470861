"""What a user submits. A field that is not known is refused: a typing error must not change a job silently."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeGuard, cast

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from stretto_messages.base import Count, JobId, Money, Seconds
from stretto_messages.values import PS_MAX, DataPartition, Metadata, PartitionName, Plan

from .errors import WireError
from .findings import Marks
from .kubernetes import KubernetesSpec
from .part import FromMapping, Spec

_SIZE = "bytes, or a size such as 512Mi, 2Gi or 1500M"
_SIZES = {
    "": 1,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


def parse_bytes(value: Any) -> Any:
    """``512Mi``, ``2Gi``, ``1500M`` or a number of bytes, as in Kubernetes."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    digits = text.rstrip("KMGTibB")
    unit = text[len(digits) :].upper().removesuffix("B")
    if unit not in _SIZES:
        raise ValueError(_SIZE)
    try:
        return int(float(digits) * _SIZES[unit])
    except (ValueError, OverflowError) as error:
        raise ValueError(_SIZE) from error


class ModelSpec(Spec):
    """The user's training code: an object with ``build``, ``keys`` and ``read`` (libs/trainer)."""

    entry: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=200),
        Field(description="module:name, importable by the pods, as in stretto.examples.wide_deep:WideDeep"),
    ]
    path: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        default=None, description="a folder put in front of the import path of the pods"
    )
    arguments: Annotated[dict[str, str | int | float | bool], Field(max_length=60)] = Field(
        default_factory=dict[str, str | int | float | bool], description="keyword arguments of the entry"
    )
    optimizer: Literal["adagrad", "adam"] = "adagrad"
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.05
    embedding_dim: Annotated[int, Field(ge=1, le=4096)] = 16
    pipeline: bool = Field(
        default=True,
        description="pull the next batch's parameters and push the last one's gradients while a batch is computed: "
        "more steps a second, with gradients of older parameters (libs/trainer/README.md, Staleness)",
    )
    metadata: Metadata = Field(default_factory=dict[str, str | int | float | bool])


class DatasetSpec(Spec):
    """The samples, and how they are cut into shards and ordered. Either ``samples``, or named partitions of them."""

    name: PartitionName | None = Field(
        default=None,
        description="which data these are, with their version, as in clicks/2026-11-21. A job that starts from another "
        "job's checkpoint goes on where that was if both state the same name, cut, order and samples; else it trains "
        "every sample",
    )
    partitions: Annotated[
        tuple[Annotated[DataPartition, FromMapping()], ...],
        Field(strict=False, max_length=1000, description="named parts; each is numbered from 0"),
    ] = ()
    growing: bool = Field(
        default=False, description="partitions grow and come while it trains (`stretto data`), until it is closed"
    )
    samples: Annotated[int, Field(ge=0, le=10**13, description="samples of one epoch; not stated with partitions")]
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    batch_size: Annotated[int, Field(ge=1, le=10**6, description="samples of one step of one worker")] = 512
    batches_per_shard: Annotated[int, Field(ge=1, le=100_000)] = 32
    shuffle: Annotated[bool, Field(description="shards in a seeded random order, new in every epoch")] = True
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
    held_out: PartitionName | None = Field(
        default=None, description="the partition that evaluations read, never trained; needed with partitions"
    )

    @property
    def partitioned(self) -> bool:
        """Whether samples are numbered within named partitions."""
        return bool(self.partitions) or self.growing

    @model_validator(mode="before")
    @classmethod
    def _count(cls, document: Any) -> Any:
        """Partitions say how many samples there are."""
        if not isinstance(document, dict):
            return document
        given = cast("dict[str, Any]", document)
        if "samples" in given or not (given.get("partitions") or given.get("growing") is True):
            return given
        parts = given.get("partitions", ())
        counts = [part.get("samples") for part in parts if isinstance(part, dict)] if _is_list(parts) else []
        return given | {"samples": sum(count for count in counts if type(count) is int and count > 0)}

    @field_validator("partitions")
    @classmethod
    def _distinct(cls, parts: tuple[DataPartition, ...]) -> tuple[DataPartition, ...]:
        names = [part.name for part in parts]
        if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
            raise ValueError(f"each partition once; {twice} is there {names.count(twice)} times")
        return parts

    @field_validator("samples")
    @classmethod
    def _counted(cls, samples: int, info: ValidationInfo) -> int:
        if "partitions" not in info.data or "growing" not in info.data:
            return samples
        parts, growing = info.data["partitions"], info.data["growing"]
        known = sum(part.samples for part in parts)
        if not parts and not growing and samples < 1:
            raise ValueError("a whole number, at least 1; or name partitions of the dataset")
        if (parts or growing) and samples != known:
            raise ValueError("not stated beside partitions or growing; the samples are those of the partitions")
        return samples

    @field_validator("epochs")
    @classmethod
    def _once(cls, epochs: int, info: ValidationInfo) -> int:
        if epochs > 1 and info.data.get("growing"):
            raise ValueError("1 for a dataset that grows: it has no end after which the next epoch could begin")
        return epochs

    @field_validator("held_out")
    @classmethod
    def _apart(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and not (info.data.get("partitions") or info.data.get("growing")):
            raise ValueError("only with partitions; without, the samples behind those that train are held out")
        if any(part.name == name for part in info.data.get("partitions", ())):
            raise ValueError("a partition that is not trained: samples that were trained say nothing about new ones")
        return name


def _is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


class Range(Spec):
    """Inclusive bounds of a count."""

    min: Annotated[int, Field(ge=1, le=10_000)] = 1
    max: Annotated[int, Field(ge=1, le=10_000)] = 64

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class CoreRange(Spec):
    """Inclusive bounds of CPU cores of one pod."""

    min: Annotated[float, Field(gt=0, le=1024)] = 0.5
    max: Annotated[float, Field(gt=0, le=1024)] = 32.0

    @model_validator(mode="after")
    def _ordered(self) -> CoreRange:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class MemoryRange(Spec):
    """Inclusive bounds of the memory of one pod; bytes, or sizes such as 2Gi."""

    min: Annotated[int, Field(ge=2**20, le=2**46, description=_SIZE)] = 512 * 2**20
    max: Annotated[int, Field(ge=2**20, le=2**46, description=_SIZE)] = 64 * 2**30

    _sizes = field_validator("min", "max", mode="before")(parse_bytes)

    @model_validator(mode="after")
    def _ordered(self) -> MemoryRange:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class RoleLimits(Spec):
    """What one role may use."""

    count: Range = Range()
    cpu_cores: CoreRange = CoreRange()
    memory: MemoryRange = MemoryRange()


class ResourceSpec(Spec):
    """Limits within which Stretto sizes the job; nothing here has to be stated."""

    workers: RoleLimits = RoleLimits()
    ps: RoleLimits = RoleLimits(count=Range(min=1, max=16))
    initial: Annotated[Plan, FromMapping()] | None = Field(
        default=None, description="start with this plan instead of a warm start"
    )
    fixed: bool = Field(default=False, description="keep the initial plan; Stretto only watches over memory and faults")

    @model_validator(mode="after")
    def _fixed_needs_a_plan(self) -> ResourceSpec:
        if self.fixed and self.initial is None:
            raise ValueError("fixed needs an initial plan")
        return self

    @property
    def least(self) -> Plan:
        """The smallest plan within the limits."""
        return self._bound("min")

    @property
    def most(self) -> Plan:
        """The largest plan within the limits."""
        return self._bound("max")

    def _bound(self, end: Literal["min", "max"]) -> Plan:
        return Plan(
            workers=getattr(self.workers.count, end),
            ps=min(getattr(self.ps.count, end), PS_MAX),  # v1 accepts more in a specification than a plan may have
            worker_cpu_cores=getattr(self.workers.cpu_cores, end),
            ps_cpu_cores=getattr(self.ps.cpu_cores, end),
            worker_memory_bytes=getattr(self.workers.memory, end),
            ps_memory_bytes=getattr(self.ps.memory, end),
        )


class PriceSpec(Spec):
    """What resources cost the job's owner, per hour."""

    cpu_core_hour: Money = 0.04
    memory_gib_hour: Money = 0.005


class CheckpointSpec(Spec):
    """When checkpoints are taken, and where they stay.

    A parameter server that is lost takes the job back to the last one. The first is taken before training begins, one
    more after the last shard; none is taken while parameters move.
    """

    every_s: Annotated[float, Field(ge=1, le=10**7)] | None = Field(
        default=300.0, description="seconds from one to the next; null: only on demand"
    )
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    url: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        default=None, description="any fsspec URL; none: the installation's own store"
    )
    restore_from: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        default=None, description="URL of a manifest to start from, at any number of parameter servers"
    )


class RestartSpec(Spec):
    """How often what may fail. The loss of a pod is never counted against the data."""

    worker_failures: Annotated[int, Field(ge=0, le=10**6, description="exits with an error of the user's code")] = 10
    shard_failures: Annotated[int, Field(ge=1, le=1000, description="attempts of a shard that fails by itself")] = 3
    samples_given_up: Annotated[Count, Field(le=10**13)] | None = Field(
        default=None, description="samples of such shards that may be left out; more fail the job; null: any number"
    )


class JobSpec(Spec):
    """A training job. Only ``name``, ``model.entry`` and the samples of ``dataset`` have to be stated."""

    api: Literal["stretto/v1"] = "stretto/v1"
    name: JobId
    model: ModelSpec
    dataset: DatasetSpec
    resources: ResourceSpec = ResourceSpec()
    prices: PriceSpec = PriceSpec()
    priority: Annotated[float, Field(gt=0, le=1000, description="weight beside other jobs")] = 1.0
    deadline_s: Annotated[
        Seconds | None,
        Field(description="after submission; a job that would be late weighs up to ten times as much"),
    ] = None
    checkpoint: CheckpointSpec = CheckpointSpec()
    restarts: RestartSpec = RestartSpec()
    environment: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")],
            Annotated[str, StringConstraints(max_length=4000)],
        ],
        Field(max_length=100),
    ] = Field(default_factory=dict[str, str])
    kubernetes: KubernetesSpec | None = Field(default=None, description="of pods that run on Kubernetes")
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=500)] | None = Field(
        default=None, description="of the pods, where they are containers, as in registry/name:tag; none: the usual one"
    )
    evaluate: Annotated[Count, Field(description="held-out samples of the exact evaluation at the end; 0: none")] = 0
    evaluate_every_samples: Annotated[Count, Field(ge=1)] | None = Field(
        default=None, description="also evaluate on them while it trains, whenever so many more samples are done"
    )

    @field_validator("deadline_s")
    @classmethod
    def _has_an_end(cls, deadline_s: float | None, info: ValidationInfo) -> float | None:
        if deadline_s is not None and (data := info.data.get("dataset")) is not None and data.growing:
            raise ValueError("none for a dataset that grows: its end is not known")
        return deadline_s

    @field_validator("evaluate")
    @classmethod
    def _readable(cls, evaluate: int, info: ValidationInfo) -> int:
        data = info.data.get("dataset")
        if evaluate and data is not None and data.partitioned and data.held_out is None:
            raise ValueError("0, or name the partition with the held-out samples in dataset.held_out")
        return evaluate

    @field_validator("evaluate_every_samples")
    @classmethod
    def _has_samples(cls, every: int | None, info: ValidationInfo) -> int | None:
        if every is not None and info.data.get("evaluate") == 0:
            raise ValueError("with evaluate: the number of held-out samples")
        return every

    @property
    def samples_total(self) -> int:
        """Samples of all epochs; of a dataset that grows: those known when it was submitted."""
        return self.dataset.samples * self.dataset.epochs

    @classmethod
    def parse(cls, document: object, marks: Marks | None = None) -> JobSpec:
        """Check a document (parsed YAML or JSON). Raises WireError: each finding with field, value and remedy.

        ``marks`` are the lines and columns of its parts (:mod:`stretto_wire.jobfile` reads both from a text).
        """
        try:
            return cls.model_validate(document, extra="forbid")  # also in values shared with messages, such as Plan
        except ValidationError as error:
            raise WireError.of(error, model=cls, marks=marks) from error

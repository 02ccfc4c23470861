"""A job's specification. Unknown fields are refused: a typing error must not change a job silently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeGuard, cast, get_args

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
)
from stretto_messages.base import EXACT, Count, JobId, Money, Seconds
from stretto_messages.values import (
    DATA_WORKERS_MAX,
    EXTENDED_MAX,
    GIVEN_UP_PERCENT,
    PS_MAX,
    SAMPLES_MAX,
    DataPartition,
    ExtendedPerPod,
    Metadata,
    PartitionName,
    Plan,
    Resources,
    extended_of,
)

from ..errors import WireError
from ..findings import Marks, finding, place_of
from ..program import ProgramSpec, check_part, check_program, completed
from ..quantities import BYTES, CORES, IN_BYTES, IN_CORES, IN_PLAN, IN_SECONDS, SECONDS
from .devices import DevicesAsked
from .extended import Name as ExtendedName
from .extended import PerPod
from .keylike import REMEDY as NO_KEYS
from .keylike import TEXT_REMEDY, keylike, keylike_line
from .kubernetes import KubernetesSpec, ObjectName
from .part import FromMapping, Spec
from .pod_files import PodPath, VolumeSpec, check_files, check_places
from .training_code import CodeSpec, Requirement

PIPELINE_FROM_STEP = 10_000
"""Steps of a job before its workers use the pipeline. A job of fewer steps would lose quality by each update that a
gradient misses, and gain seconds (libs/trainer/README.md, Staleness). The number is taste: programs that lost had up to
some hundred steps."""


class TransferSpec(Spec):
    """The types in which rows and dense parameters travel; parameter servers keep and update float32 ones."""

    pull: Literal["float32", "bfloat16"] = Field(
        default="float32", description="from parameter servers to workers; bfloat16 is rounded to nearest"
    )
    push: Literal["float32", "bfloat16", "int8"] = Field(
        default="float32",
        description="gradients, to parameter servers. int8: a byte a value, and a scale for each 64. What rounding "
        "takes from a dense gradient is added to the worker's next one; those of rows are right in the mean",
    )
    dense_every: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1,
        description="pulls of a worker of which one brings the dense parameters, from `pipeline_from_step` on. At 4 "
        "they are up to three of its steps older",
    )
    push_every: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1,
        description="batches of a worker whose gradients are added up and pushed at once, from `pipeline_from_step` "
        "on. At 4 parameter servers make one step with the sum of four; of a lost worker up to four are trained again",
    )


UpdateRule = Literal["adagrad", "adam", "adamw", "ftrl", "rmsprop", "rowwise-adagrad", "sgd"]
LearningRate = Annotated[float, Field(gt=0, le=100)]


class RuleSpec(Spec):
    """An update rule with a step size of its own."""

    name: UpdateRule = Field(description="update rule")
    learning_rate: LearningRate | None = Field(default=None, description="step size; null: model.learning_rate")


@dataclass(frozen=True, slots=True)
class OrMapping:
    """Annotation of an update rule that is a name, or else a mapping with the fields of a part."""

    part: type[Spec]

    def parse(self, given: Any) -> Any:
        """Return a name or the part. Raises ValueError."""
        if isinstance(given, self.part):
            return given
        if isinstance(given, dict):
            return self.part.model_validate(given)
        if isinstance(given, str) and given in get_args(UpdateRule):
            return given
        names = ", ".join(get_args(UpdateRule))
        raise ValueError(f"one of {names}, or a mapping with the fields {', '.join(self.part.model_fields)}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Tell of a wrong value what is wrong with it in its own form alone, and not what each form would be."""
        return WrapValidator(lambda given, _: self.parse(given)).__get_pydantic_core_schema__(source, handler)


class RulesSpec(Spec):
    """Update rules of embedding rows and of dense parameters."""

    rows: Annotated[UpdateRule | RuleSpec, OrMapping(RuleSpec)] = Field(description="update rule of embedding rows")
    dense: Annotated[UpdateRule | RuleSpec, OrMapping(RuleSpec)] = Field(description="update rule of dense parameters")


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
    code: CodeSpec | None = Field(
        default=None,
        description="code that workers fetch at their start: a folder, a wheel, an archive, or the URL of one",
    )
    requirements: Annotated[tuple[Requirement, ...], Field(strict=False, max_length=50)] = Field(
        default=(),
        description="packages that pip installs into each worker's own folder at its start, as in lightgbm==4.6.0; the "
        "installation says which. An image that has them starts faster",
    )
    arguments: Annotated[dict[str, str | int | float | bool], Field(max_length=60)] = Field(
        default_factory=dict[str, str | int | float | bool], description="keyword arguments of the entry"
    )
    optimizer: Annotated[UpdateRule | RulesSpec, OrMapping(RulesSpec)] = Field(
        default="adagrad",
        description="update rule of embeddings and dense parameters, or one of each, as in {rows: rowwise-adagrad, "
        "dense: adam}; what the training code gives has precedence",
    )
    learning_rate: Annotated[float, Field(gt=0, le=100, description="step size of the optimizer")] = 0.05
    row_weights: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="type in which parameter servers keep embedding weights; bfloat16 takes half their memory and "
        "rounds them after each update (the optimizer's slots stay float32)",
    )
    transfer: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="type in which embedding rows and their gradients travel between workers and parameter servers; "
        "bfloat16 halves these bytes and rounds both",
    )
    wire: TransferSpec = Field(
        default=TransferSpec.model_construct(),
        description="fewer bytes between workers and parameter servers, for slow networks; with `transfer`, rows "
        "travel in the narrower type of both",
    )
    embedding_dim: Annotated[int, Field(ge=1, le=4096, description="numbers in the vector of one embedding key")] = 16
    restore_from: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description="URL of a .keras file or SavedModel of the same Keras model, to start with its weights; "
        "the pods read it",
    )
    pipeline: bool = Field(
        default=True,
        description="pull the next batch's parameters and push the last one's gradients while a batch is computed: "
        "more steps a second, with gradients of older parameters (libs/trainer/README.md, Staleness)",
    )
    pipeline_from_step: Annotated[int, Field(ge=0, le=10**12)] = Field(
        default=PIPELINE_FROM_STEP, description="steps of the job before its workers use the pipeline"
    )
    metadata: Metadata = Field(default_factory=dict[str, str | int | float | bool])


class RowSpec(Spec):
    """Keys that get a row in an embedding table, how long it stays, and whether memory may round it. By default each
    key that was trained, for ever, and as it was trained.

    All three change the model. `stretto audit` counts the gradients that are left out.
    """

    admit: Annotated[
        int,
        Field(
            ge=1,
            le=100,
            description="steps that have a key until it gets its row; until then it has its initial weights, and its "
            "gradients are dropped. 2 leaves out the keys of a single step, often most of them",
        ),
    ] = 1
    expire_samples: Annotated[
        Count,
        Field(
            le=SAMPLES_MAX,
            description="samples of the job without a change of a row after which the row is dropped, within a quarter "
            "of them more; 0: rows stay for ever",
        ),
    ] = 0
    warm: Literal["none", "bf16"] = Field(
        default="none",
        description="bf16: rows that find no room in the memory of their server are rounded to bfloat16 there, with "
        "their optimizer's state, before any goes to its disk; none: they stay as they were trained",
    )


class DatasetSpec(Spec):
    """The samples, their shards and their order. State either ``samples`` or named partitions."""

    name: PartitionName | None = Field(
        default=None,
        description="name and version of the data, as in clicks/2026-11-21. A job that starts from another job's "
        "checkpoint continues at that position if both jobs state the same name, shard size, order and samples; "
        "otherwise it trains every sample",
    )
    partitions: Annotated[
        tuple[Annotated[DataPartition, FromMapping()], ...],
        Field(strict=False, max_length=1000, description="named parts; each is numbered from 0"),
    ] = ()
    growing: bool = Field(
        default=False,
        description="partitions may grow and new ones may be added during training (`stretto data`), until the "
        "dataset is closed",
    )
    samples: Annotated[int, Field(ge=0, le=SAMPLES_MAX, description="samples of one epoch; not stated with partitions")]
    epochs: Annotated[int, Field(ge=1, le=10_000, description="passes over all samples")] = 1
    batch_size: Annotated[int, Field(ge=1, le=10**6, description="samples of one step of one worker")] = 512
    batches_per_shard: Annotated[
        int, Field(ge=1, le=100_000, description="steps of one shard; a worker leases one shard at a time")
    ] = 32
    shuffle: Annotated[bool, Field(description="shards in a seeded random order, new in every epoch")] = True
    seed: Annotated[int, Field(ge=0, lt=2**53, description="seed of the random order of shards")] = 0
    held_out: PartitionName | None = Field(
        default=None, description="the partition that evaluations read; it is never trained; needed with partitions"
    )
    evaluate_first: Annotated[
        int,
        Field(
            ge=0,
            le=SAMPLES_MAX,
            description="samples of each partition, and of what arrives in one later, that are evaluated before they "
            "are trained, with the parameters that all data before them made; partitions then train one after the "
            "other; 0: none",
        ),
    ] = 0

    @property
    def partitioned(self) -> bool:
        """True if samples are numbered within named partitions."""
        return bool(self.partitions) or self.growing

    @model_validator(mode="before")
    @classmethod
    def _count(cls, document: Any) -> Any:
        """Take the number of samples from the partitions if it is not stated."""
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
            raise ValueError(f"each partition once; {twice} is listed {names.count(twice)} times")
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
            raise ValueError("leave it out with partitions or growing: the partitions state their samples")
        return samples

    @field_validator("epochs")
    @classmethod
    def _once(cls, epochs: int, info: ValidationInfo) -> int:
        if epochs > 1 and info.data.get("growing"):
            raise ValueError("1 for a growing dataset: it has no end after which the next epoch could begin")
        return epochs

    @field_validator("held_out")
    @classmethod
    def _apart(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and not (info.data.get("partitions") or info.data.get("growing")):
            raise ValueError("leave it out without partitions: the samples after the trained ones are held out")
        if any(part.name == name for part in info.data.get("partitions", ())):
            raise ValueError("a partition that is not trained: trained samples say nothing about new ones")
        return name

    @field_validator("evaluate_first")
    @classmethod
    def _in_windows(cls, samples: int, info: ValidationInfo) -> int:
        if samples and not (info.data.get("partitions") or info.data.get("growing")):
            raise ValueError("0 without partitions: name at least two in dataset.partitions, or state growing")
        if samples and info.data.get("epochs", 1) > 1:
            raise ValueError("0 with several epochs: from the second one on, every sample has been trained before")
        return samples


def _is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


class Range(Spec):
    """Inclusive bounds of a count."""

    min: Annotated[int, Field(ge=1, le=10_000, description="smallest number of pods")] = 1
    max: Annotated[int, Field(ge=1, le=10_000, description="largest number of pods")] = 64

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class CoreRange(Spec):
    """Inclusive bounds of CPU cores of one pod."""

    min: Annotated[float, Field(ge=0.001, le=1024, description=f"{CORES}; fewest of one pod"), IN_CORES] = 0.5
    max: Annotated[float, Field(ge=0.001, le=1024, description=f"{CORES}; most of one pod"), IN_CORES] = 32.0

    @model_validator(mode="after")
    def _ordered(self) -> CoreRange:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class MemoryRange(Spec):
    """Inclusive bounds of the memory of one pod, in bytes or as sizes such as 2Gi."""

    min: Annotated[int, Field(ge=2**20, le=2**46, description=f"{BYTES}; least memory of one pod"), IN_BYTES] = 2**29
    max: Annotated[int, Field(ge=2**20, le=2**46, description=f"{BYTES}; most memory of one pod"), IN_BYTES] = 2**36

    @model_validator(mode="after")
    def _ordered(self) -> MemoryRange:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class RoleLimits(Spec):
    """Limits of the pods of one role."""

    count: Range = Field(default=Range.model_construct(), description="number of pods of the role")
    cpu_cores: CoreRange = Field(default=CoreRange.model_construct(), description="CPU cores of one pod")
    memory: MemoryRange = Field(
        default=MemoryRange.model_construct(), description="memory of one pod, in bytes or as sizes"
    )
    extended: PerPod = Field(
        default_factory=dict[str, int],
        description="devices of one pod, such as nvidia.com/gpu: 1, by the names of Kubernetes' extended resources; "
        "every pod of the role has them, and the job waits until the cluster has as many free",
    )


class WorkerLimits(RoleLimits):
    """Limits of the workers, and the types of devices that they may have."""

    devices: DevicesAsked = Field(
        default=(),
        description="types of devices, of those that the installation states, that workers may have instead of cores; "
        "auto: all of them. Stretto tries the promising ones and chooses by speed and price; none: cores alone",
    )
    dense: Literal["servers", "group"] = Field(
        default="servers",
        description="how the dense gradients of a step reach the parameter servers. servers: each worker's by itself, "
        "whenever it has one; group: workers of the same devices wait for each other in each step and push the mean, "
        "as one worker with the batches of all would, so that fewer bytes pass each process; rows are pushed by each "
        "worker in both",
    )

    stages: Annotated[
        Literal[1, 2, 3, "auto"],
        Field(
            description="workers that a step passes, one after the other. 1: each worker computes the whole step; 2: "
            "workers read samples and pull rows, others on devices compute the layers; 3: in two parts, beginning at "
            "the layers that `initial` states; auto: 1 or 2, whichever costs less a sample by what was measured",
        ),
    ] = 1

    @model_validator(mode="after")
    def _devices_or_extended(self) -> WorkerLimits:
        if self.devices and self.extended:
            raise ValueError("state devices or extended: a type of devices says itself what a unit has")
        return self

    @model_validator(mode="after")
    def _stages_have_devices(self) -> WorkerLimits:
        if self.stages != 1 and not self.devices:
            raise ValueError(f"stages = {self.stages}: state devices as well, for the stages after the first; or 1")
        if self.stages != 1 and self.dense == "group":
            raise ValueError(f"stages = {self.stages}: leave dense: group out, or state 1; a later stage has no group")
        return self


class PsLimits(RoleLimits):
    """Limits of the parameter servers, and of the rows that they may keep on their disks."""

    spill: Literal["never", "emergency", "auto"] = Field(
        default="emergency",
        description="embedding rows on a parameter server's disk. emergency: a server that would pass its memory "
        "evicts the rows that are used least, which costs speed, and goes on asking for memory; auto: and it asks for "
        "none where reading rows costs less than the memory; never: no row",
    )
    spill_limit: Annotated[int, Field(ge=2**20, le=2**46), IN_BYTES] | None = Field(
        default=None, description=f"{BYTES}; most of one parameter server's disk for rows; null: what is free"
    )

    @model_validator(mode="after")
    def _limits_something(self) -> PsLimits:
        if self.spill == "never" and self.spill_limit is not None:
            raise ValueError("spill_limit has no meaning with spill: never; leave it out, or state emergency or auto")
        return self


DATA_WORKERS_MOST = 16
"""Most data workers of a job that states no number. Taste: a job that has use for more states it."""


class DataWorkerSpec(Spec):
    """Data workers: pods that prepare batches for the workers, and hold nothing. The numbers trained stay the same."""

    mode: Literal["auto", "always", "off"] = Field(
        default="auto",
        description="auto: Stretto starts as many as the job has use for, by its data queue, while the cluster has "
        "room; always: so many from start to end; off: none",
    )
    count: Annotated[int, Field(ge=1, le=DATA_WORKERS_MAX)] | None = Field(
        default=None,
        description="number of data workers: the most of them under auto, where it need not be stated, and all of "
        "them under always",
    )
    cpu_cores: Annotated[
        float, Field(ge=0.001, le=1024, description=f"{CORES} of one; each whole core prepares one batch"), IN_CORES
    ] = 1.0
    memory: Annotated[int, Field(ge=2**20, le=2**46, description=f"{BYTES}; memory of one"), IN_BYTES] = 2**31

    @model_validator(mode="after")
    def _always_needs_a_number(self) -> DataWorkerSpec:
        if self.mode == "always" and self.count is None:
            raise ValueError("mode always needs a number: state resources.data.count, or leave the mode out")
        return self

    @property
    def each(self) -> Resources:
        """The resources of one."""
        return Resources(self.cpu_cores, self.memory)

    @property
    def always(self) -> int:
        """Number of those that are there from start to end."""
        return self.count or 0 if self.mode == "always" else 0

    @property
    def most(self) -> int:
        """Number up to which Stretto may start them by itself."""
        return self.count or DATA_WORKERS_MOST if self.mode == "auto" else 0


class ResourceSpec(Spec):
    """Limits within which Stretto sizes the job; nothing here has to be stated."""

    workers: WorkerLimits = Field(default=WorkerLimits.model_construct(), description="limits of the workers")
    ps: PsLimits = Field(
        default=PsLimits.model_construct(
            count=Range.model_construct(max=16), memory=MemoryRange.model_construct(min=128 * 2**20)
        ),
        description="limits of the parameter servers",
    )
    data: DataWorkerSpec = Field(
        default=DataWorkerSpec.model_construct(), description="pods that read and prepare batches for the workers"
    )
    initial: Annotated[Plan, FromMapping(), IN_PLAN] | None = Field(
        default=None, description="start with this plan instead of a warm start"
    )
    fixed: bool = Field(
        default=False,
        description="keep the initial plan; Stretto then only handles memory limits, faults and data workers",
    )

    @model_validator(mode="after")
    def _fixed_needs_a_plan(self) -> ResourceSpec:
        if self.fixed and self.initial is None:
            raise ValueError("fixed needs an initial plan: state resources.initial, or leave fixed out")
        return self

    @model_validator(mode="after")
    def _initial_has_its_stages(self) -> ResourceSpec:
        asked, planned = self.workers.stages, self.initial.stages if self.initial else 1
        if asked == 3 and (planned != 3 or not self.fixed):
            raise ValueError(
                "workers.stages = 3: state fixed: true and an initial plan with groups of the stages 1 and 2; only its "
                "first_layer says where to cut; or 2"
            )
        if asked == 2 and self.fixed and planned == 1:
            raise ValueError(
                "workers.stages = 2 beside fixed: true: state in initial which group is of stage 1, by stage: 1 and "
                "first_layer: 1; or leave fixed out, and Stretto tries two"
            )
        if planned > (2 if asked == "auto" else asked):
            raise ValueError(f"initial has {planned} stages: state workers.stages: {planned}, or leave its groups out")
        return self

    @property
    def least(self) -> Plan:
        """The smallest plan within the limits."""
        return self._bound("min")

    @property
    def most(self) -> Plan:
        """The largest plan within the limits."""
        return self._bound("max")

    @property
    def extended(self) -> ExtendedPerPod:
        """The extended resources of one pod of each role."""
        return ExtendedPerPod(extended_of(self.workers.extended), extended_of(self.ps.extended))

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
    """Prices of resources for the job's owner, per hour."""

    cpu_core_hour: Money = Field(default=0.04, description="price of one CPU core for one hour, in your currency")
    memory_gib_hour: Money = Field(default=0.005, description="price of 1 GiB of memory for one hour, same currency")
    disk_gib_hour: Money = Field(default=0.0, description="price of 1 GiB of a pod's disk for one hour, same currency")
    extended_hour: Annotated[dict[ExtendedName, Money], Field(max_length=EXTENDED_MAX)] = Field(
        default_factory=dict[str, float],
        description="price of one unit of an extended resource for one hour, by its name, as in nvidia.com/gpu: 2.5; "
        "others cost nothing",
    )

    @model_validator(mode="after")
    def _something_has_a_price(self) -> PriceSpec:
        if self.cpu_core_hour == 0 and self.memory_gib_hour == 0:
            raise ValueError("cpu_core_hour and memory_gib_hour must not both be 0: give at least one a price")
        return self


class CheckpointSpec(Spec):
    """Times, number and place of checkpoints.

    The part of a lost parameter server comes back from the last checkpoint while the others train on. The first one is
    taken before training begins, one more after the last shard; none is taken while parameters move.
    """

    every_s: Annotated[float, Field(ge=1, le=10**7), IN_SECONDS] | None = Field(
        default=10.0, description=f"{SECONDS}; between two checkpoints; null: only on demand"
    )
    keep: Annotated[
        int,
        Field(ge=1, le=1000, description="number of latest full checkpoints that are kept, each with its differences"),
    ] = 2
    url: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        default=None,
        description="folder of the checkpoints, an fsspec URL that the installation allows; none: its own store",
    )
    restore_from: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        default=None,
        description="URL of a manifest to start from, at any number of parameter servers: of a job of your own, or one "
        "that the installation shares",
    )


class RestartSpec(Spec):
    """Numbers of failures after which a job or a shard is given up. A lost pod never counts against its shard."""

    worker_failures: Annotated[
        int,
        Field(
            ge=0,
            le=10**6,
            description="worker exits by errors of the user's code; one more fails the job, and so does the second "
            "before the job has trained a sample, or of a later stage before it has begun",
        ),
    ] = 10
    shard_failures: Annotated[
        int, Field(ge=1, le=1000, description="failed attempts after which a shard is abandoned")
    ] = 3
    samples_given_up: Annotated[Count, Field(le=SAMPLES_MAX)] | None = Field(
        default=None,
        description="samples of abandoned shards; more fail the job; null: "
        f"{GIVEN_UP_PERCENT} % of the samples of all epochs, of growing data those known so far",
    )


class BestSpec(Spec):
    """The best model of a job: the metric of its evaluations during training by which it is found.

    The first checkpoint after the best evaluation is kept, and exported by `stretto export --best`.
    """

    metric: Annotated[str, StringConstraints(min_length=1, max_length=60)] = Field(
        default="loss", description="loss, auc, or the name of a metric of the model that is a mean"
    )
    direction: Literal["higher", "lower"] | None = Field(
        default=None, description="which values are better; null: lower ones of a loss, higher ones of anything else"
    )
    least_gain: Annotated[float, Field(ge=0, le=1e9, description="a value counts as better if it is so by more")] = 0.0
    patience: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="training stops after so many evaluations in a row that were not better (early stopping); null: it "
        "goes on to the last sample",
    )

    @property
    def is_higher_better(self) -> bool:
        """True if the better one of two values is the higher one."""
        return self.direction == "higher" or (self.direction is None and self.metric != "loss")


class NetworkSpec(Spec):
    """Reach of the job's pods. They always reach one another, the bus, the cache and the installation's store."""

    egress: bool = Field(
        default=False,
        description="the pods may connect to anything but cloud metadata addresses, such as to data in s3://; needed "
        "on Docker and Kubernetes, where the installation may refuse it; processes are not confined",
    )


class JobSpec(Spec):
    """A training job. Only ``name``, ``model.entry`` and the samples of ``dataset`` have to be stated.

    A job that runs a program of its own states ``program.command`` instead of ``model.entry``.
    """

    api: Literal["stretto/v1"] = Field(default="stretto/v1", description="version of the job file's format")
    name: JobId
    model: ModelSpec = Field(
        description="the training code and its parameters; or state `program`, a program of your own"
    )
    program: ProgramSpec | None = Field(
        default=None,
        validate_default=True,
        description="a program of your own that the workers run instead of a model; there are no parameter servers",
    )
    dataset: DatasetSpec = Field(description="the samples, their shards and their order")
    rows: RowSpec = Field(
        default=RowSpec.model_construct(),
        description="keys that get a row in an embedding table, and how long it stays",
    )
    resources: ResourceSpec = Field(
        default=ResourceSpec.model_construct(), description="limits within which Stretto sizes the job"
    )
    prices: PriceSpec = Field(default=PriceSpec.model_construct(), description="prices of resources, per hour")
    priority: Annotated[
        float, Field(gt=0, le=1000, description="weight of the job; 2 counts twice as much as a job with 1")
    ] = 1.0
    deadline_s: Annotated[Seconds, IN_SECONDS] | None = Field(
        default=None,
        description=f"{SECONDS}; after submission; a job that would be late weighs up to ten times as much",
    )
    checkpoint: CheckpointSpec = Field(
        default=CheckpointSpec.model_construct(), description="times, number and place of checkpoints"
    )
    restarts: RestartSpec = Field(
        default=RestartSpec.model_construct(), description="failures after which the job is given up"
    )
    environment: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")],
            Annotated[str, StringConstraints(max_length=4000)],
        ],
        Field(max_length=100),
    ] = Field(
        default_factory=dict[str, str],
        description="environment variables of the job's pods; every reader sees them, so keys go to environment_from",
    )
    environment_from: Annotated[tuple[ObjectName, ...], Field(strict=False, max_length=20)] = Field(
        default=(),
        description="secrets whose keys become environment variables of the job's pods; the installation holds their "
        "values and says which of them jobs may name",
    )
    volumes: Annotated[tuple[VolumeSpec, ...], Field(strict=False, max_length=20)] = Field(
        default=(), description="data that the job's pods see as folders, read-only unless stated"
    )
    files: Annotated[dict[PodPath, str], Field(max_length=20)] = Field(
        default_factory=dict[str, str],
        description="small text files of the job's pods, by their places: absolute ones in containers, others in the "
        "pod's own folder; every reader sees them, so keys go to environment_from",
    )
    network: NetworkSpec = Field(default=NetworkSpec.model_construct(), description="reach of the job's pods")
    kubernetes: KubernetesSpec | None = Field(default=None, description="settings of pods that run on Kubernetes")
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=500)] | None = Field(
        default=None, description="image of pods in containers, as in registry/name:tag; none: the installation's image"
    )
    evaluate: Annotated[
        Count, Field(description="number of held-out samples of the exact evaluation at the end; 0: no evaluation")
    ] = 0
    evaluate_every_samples: Annotated[Count, Field(ge=1)] | None = Field(
        default=None, description="trained samples between two evaluations during training; null: only at the end"
    )
    best: BestSpec | None = Field(
        default=None, description="which model of the job is the best one; its checkpoint is kept, training may stop"
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, document: Any) -> Any:
        return completed(document)

    @field_validator("program")
    @classmethod
    def _runs_one(cls, program: ProgramSpec | None, info: ValidationInfo) -> ProgramSpec | None:
        model = info.data.get("model")
        check_program(program, model)
        if program is not None and model is not None:  # where decisions look for what is known of any job
            model.metadata.update(program.metadata)
        return program

    @field_validator("dataset", "rows", "resources", "checkpoint", "evaluate", "best")
    @classmethod
    def _fits_the_program(cls, part: Any, info: ValidationInfo) -> Any:
        if "program" in info.data:
            check_part(str(info.field_name), part, info.data["program"], info.data.get("dataset"))
        return part

    @field_validator("dataset")
    @classmethod
    def _fills_a_push(cls, data: DatasetSpec, info: ValidationInfo) -> DatasetSpec:
        model = info.data.get("model")
        if model is not None and model.wire.push_every > data.batches_per_shard:
            raise ValueError(
                f"batches_per_shard of at least model.wire.push_every, {model.wire.push_every}: no push has batches of "
                f"two shards; or a push_every of at most {data.batches_per_shard}"
            )
        return data

    @field_validator("rows")
    @classmethod
    def _outlives_a_push(cls, rows: RowSpec, info: ValidationInfo) -> RowSpec:
        model, data = info.data.get("model"), info.data.get("dataset")
        if model is None or data is None:
            return rows
        samples = data.batch_size * model.wire.push_every
        if 0 < rows.expire_samples < samples:
            raise ValueError(
                f"expire_samples of at least {samples}, dataset.batch_size times model.wire.push_every: a row would "
                "expire before the next push; or 0"
            )
        return rows

    @field_validator("volumes")
    @classmethod
    def _apart(cls, volumes: tuple[VolumeSpec, ...]) -> tuple[VolumeSpec, ...]:
        check_places(volumes, {})
        return volumes

    @field_validator("files")
    @classmethod
    def _small(cls, files: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        check_places(info.data.get("volumes", ()), files)
        return check_files(files)

    @field_validator("deadline_s")
    @classmethod
    def _has_an_end(cls, deadline_s: float | None, info: ValidationInfo) -> float | None:
        if deadline_s is not None and (data := info.data.get("dataset")) is not None and data.growing:
            raise ValueError("leave it out for a growing dataset: its end is not known")
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
            raise ValueError("state evaluate, the number of held-out samples, as well")
        return every

    @field_validator("best")
    @classmethod
    def _is_found(cls, best: BestSpec | None, info: ValidationInfo) -> BestSpec | None:
        if best is not None and info.data.get("evaluate_every_samples", 1) is None:
            raise ValueError("state evaluate_every_samples as well: it is found among the evaluations during training")
        if best is not None and best.patience is not None and (data := info.data.get("dataset")) and data.growing:
            raise ValueError("leave best.patience out for a growing dataset, which ends when it is closed")
        return best

    @property
    def level(self) -> int:
        """Level of the promise about the job's samples (:data:`stretto_wire.program.PROMISES`)."""
        return EXACT if self.program is None else self.program.guarantee

    @property
    def samples_total(self) -> int:
        """Samples of all epochs. A growing dataset counts only those known at submission."""
        return self.dataset.samples * self.dataset.epochs

    @classmethod
    def parse(cls, document: object, marks: Marks | None = None) -> JobSpec:
        """Check a document (parsed YAML or JSON).

        ``marks`` are the lines and columns of its parts (:mod:`stretto_wire.jobspec.jobfile` reads both from a text).

        Raises:
            WireError: with field, value and remedy of each finding.
        """
        try:
            spec = cls.model_validate(document, extra="forbid")  # also in values shared with messages, such as Plan
        except ValidationError as error:
            raise WireError.of(error, model=cls, marks=marks, document=document) from error
        found = [(("environment", name), "(not shown)", NO_KEYS) for name in keylike(spec.environment)]
        for path, text in spec.files.items():
            if number := keylike_line(text):
                found.append((("files", path), f"line {number} (not shown)", TEXT_REMEDY))
        if found:
            raise WireError.collected([finding(*each, place_of(each[0], marks)) for each in found])
        return spec

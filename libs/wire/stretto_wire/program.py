"""A job whose workers run a program of the user's instead of a model of Stretto's, and what such a job cannot state."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import Field, StringConstraints, ValidationInfo, field_validator
from stretto_messages.base import EXACT, NO_SERVERS
from stretto_messages.values import Metadata

from .findings import Unfit
from .jobspec.part import Spec

NO_MODEL = "stretto.program:NO_MODEL"
"""The ``model.entry`` of a job that runs a program; nothing loads it."""
_SERVERS: dict[str, Any] = {
    name: {"min": value, "max": value} for name, value in zip(("count", "cpu_cores", "memory"), NO_SERVERS, strict=True)
}
"""The ``resources.ps`` of a job that runs a program."""
SERVERS_IN_PLAN: dict[str, Any] = dict(zip(("ps", "ps_cpu_cores", "ps_memory_bytes"), NO_SERVERS, strict=True))
"""The fields of a plan that say which parameter servers it has; a job that runs a program states none of them."""
PORT_VARIABLE = "STRETTO_PROGRAM_PORT"
"""Variable of a pod with the port at which the program of a rank may listen, where it may not choose one."""
RESTART = "restart"
"""The ``program.resize`` of a job file whose workers are the ranks of one program."""
CONSISTENT = 2
"""The level of a job whose program and ledger go back to a checkpoint together."""
IN_JOB_FILE: dict[str, tuple[Any, ...]] = {"level": (0, 1, CONSISTENT), "resize": ("live", "none", RESTART)}
"""Values of a program that a job file may state; the last of each field is stored otherwise (:func:`completed`)."""
PROMISES = {
    0: "level 0, watched: the program is run again if its worker is lost; nothing is promised about its data",
    1: "level 1, leased: no sample is lost, and at most one shard is repeated for each lost worker, and counted",
    2: "level 2, consistent: each sample counts once in the parameters that survive; what was trained after the last "
    "checkpoint is trained again",
    EXACT: "level 3, exact: each sample counts exactly once in the parameters",
}
"""Promises of Stretto about a job's samples, by the level of its program; 3: of a model."""
_OF_OBJECT = "level 0, watched: another controller runs its pods; nothing is promised about its data"
_OF_MODEL = "state model in place of program, whose parameters are on Stretto's parameter servers"
_ONE_RUN = {"samples": 1, "batch_size": 1, "batches_per_shard": 1, "shuffle": False}
"""The data of a program that is only watched: the run itself is leased, to one worker."""
_OF_SHARDS = ("partitions", "growing", "evaluate_first", "held_out")


class ProgramSpec(Spec):
    """A program that each worker runs instead of a model; it knows of Stretto by ``stretto.agent``, or not at all."""

    command: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=4000)], ...],
        Field(
            strict=False,
            min_length=1,
            max_length=200,
            description="the command and its arguments, as in [python, train.py]; no shell reads it",
        ),
    ]
    path: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        default=None, description="the folder in which it runs, where the pods are; null: the pod's own, which is empty"
    )
    resize: Literal["live", "none"] = Field(
        default="live",
        description="live: workers come and go while the others' programs run on; none: their number never changes, so "
        "that resources.workers.count states one; restart, as of torch.distributed: workers are the ranks of one "
        "program, which take each step together, and all of them begin anew whenever a worker comes or goes",
    )
    progress: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = Field(
        default=None,
        description="at level 0, a regular expression for lines that the program prints, whose group is the number of "
        "steps so far, as in step (\\d+); null: it tells no steps",
    )
    event_files: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="at level 0, in place of progress, the folder below which the program writes TensorBoard's event "
        "files, relative to the one in which it runs; the greatest step in them is the number of steps so far",
    )
    level: Literal[0, 1] = Field(
        default=1,
        description="0, watched: the program runs to its end in one worker, and is run again if that is lost. 1, "
        "leased: the program takes the numbers of its samples from stretto.agent.samples. 2, consistent: it also "
        "saves and loads its parameters by stretto.agent.checkpoint and stretto.agent.restored. Without a dataset it "
        "is 0",
    )
    metadata: Metadata = Field(
        default_factory=dict[str, str | int | float | bool],
        exclude_if=lambda value: not value,
        description="properties of the program and its data, by which warm start finds similar jobs",
    )
    consistent: bool = Field(
        default=False,
        description="level 2 as it is stored: beside level 1",
    )
    together: bool = Field(
        default=False,
        description="resize restart as it is stored: beside live",
    )

    object: Annotated[str, StringConstraints(min_length=1, max_length=300)] | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="at level 0, the object whose pods another controller runs, as in Job/training/my-dlrm; the "
        "decider states it, and nobody else may",
    )

    @property
    def guarantee(self) -> int:
        """Level of the promise about the program's samples."""
        return CONSISTENT if self.consistent else self.level

    @field_validator("level", "resize", mode="before")
    @classmethod
    def _is_of_a_job_file(cls, given: Any, info: ValidationInfo) -> Any:
        allowed = IN_JOB_FILE[str(info.field_name)]
        if given not in allowed:
            remedy = f"; for level {EXACT}, {_OF_MODEL}" if info.field_name == "level" and given == EXACT else ""
            raise ValueError(f"one of {', '.join(map(str, allowed))}{remedy}")
        return given

    @field_validator("progress")
    @classmethod
    def _has_a_group(cls, progress: str | None) -> str | None:
        if progress is None:
            return None
        try:
            groups = re.compile(progress.encode()).groups  # as bytes, since a program prints those
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"a regular expression, as in step (\\d+); {error}") from None
        if groups != 1:
            raise ValueError(f"one group around the number of steps, as in step (\\d+); there are {groups or 'none'}")
        return progress


def promise_of(program: ProgramSpec | None) -> str:
    """Return what Stretto promises about a job's samples, in words. program: None for a model."""
    if program is not None and program.object is not None:
        return _OF_OBJECT
    told = PROMISES[EXACT if program is None else program.guarantee]
    if program is not None and program.together and not program.consistent:
        told += "; its ranks begin anew at each change of the workers, and keep their parameters by themselves"
    return told


def completed(document: Any) -> Any:
    """Return a job file with a program, with the parts that are the same in all such jobs where it leaves them out."""
    if not isinstance(document, dict) or document.get("program") is None:
        return document
    given = cast("dict[str, Any]", document)
    program, resources = given["program"], given.get("resources", {})
    if isinstance(program, dict) and "dataset" not in given and "level" not in program:
        program = {**program, "level": 0}
    if isinstance(program, dict) and program.get("level") == CONSISTENT:
        program = {**program, "level": 1, "consistent": True}
    if isinstance(program, dict) and program.get("resize") == RESTART:
        program = {**program, "resize": "live", "together": True}
    is_watched = "dataset" not in given if not isinstance(program, dict) else program.get("level") == 0
    if is_watched:
        given = {"dataset": _ONE_RUN, **given}
    if isinstance(resources, dict):
        resources = {"ps": _SERVERS, "data": {"mode": "off"}, **cast("dict[str, Any]", resources)}
        workers = resources.get("workers", {})
        is_single = is_watched or _is_alone(program)
        if is_single and isinstance(workers, dict):
            resources["workers"] = {"count": {"min": 1, "max": 1}, **cast("dict[str, Any]", workers)}
        if isinstance(resources.get("initial"), dict):
            resources["initial"] = {**SERVERS_IN_PLAN, **resources["initial"]}
    return {
        "model": {"entry": NO_MODEL},
        "checkpoint": {"every_s": None},
        **given,
        "program": program,
        "resources": resources,
    }


def _is_alone(program: Any) -> bool:
    """Return True for a program at level 2 that is not written for several ranks."""
    return isinstance(program, dict) and program.get("consistent") is True and not program.get("together")


def check_program(program: ProgramSpec | None, model: Any) -> None:
    """Refuse a job with a program and a model, or with neither. Raises ValueError, with the remedy."""
    has_model = model is not None and model.entry != NO_MODEL
    if program is not None and has_model:
        raise ValueError("a job runs a program or trains a model: leave program out, or model")
    if program is not None and program.consistent and not program.level:
        raise Unfit("level 1 or 2: at level 0 the program takes no samples", "level")
    if program is not None and program.together and not program.level:
        raise Unfit("live or none at level 0, which runs all of its program in one worker", "resize")
    if program is not None and program.level and program.object is not None:
        raise Unfit("leave it out from level 1 on: the object's pods would take no samples", "object")
    if program is not None and program.level and program.progress is not None:
        raise Unfit("leave it out from level 1 on: stretto.agent.samples tells the steps", "progress")
    if program is not None and program.event_files is not None and (program.level or program.progress is not None):
        remedy = "stretto.agent.samples tells the steps" if program.level else "progress tells the steps"
        raise Unfit(f"leave it out: {remedy}", "event_files")
    if program is None and model is not None and not has_model:
        raise ValueError("a command, as in {command: [python, train.py]}; or name the model's own code in model.entry")


def check_part(name: str, part: Any, program: ProgramSpec | None, data: Any = None) -> None:
    """Refuse what a job with a program cannot have, or one without must have. Raises Unfit, with the remedy.

    ``data``: the job's dataset, if it is known by now.
    """
    if program is None:
        if name == "resources" and not (part.least.servers and (part.initial is None or part.initial.servers)):
            raise Unfit("more than 1 MiB for a parameter server: none runs in so little", "ps")
        return
    if name == "dataset":
        _check_dataset(part, program)
    elif name == "resources":
        _check_resources(part, program)
        if program.together and data is not None:
            _check_ranks(part.workers.count.max, data)
    elif name == "checkpoint" and (part.every_s is not None or part.url or part.restore_from):
        raise Unfit("leave checkpoint out beside program: the program keeps its own parameters")
    elif name in ("rows", "evaluate", "best") and part not in (None, 0, type(part)()):
        raise Unfit(f"leave {name} out beside program: it is of models that Stretto trains")


def _check_dataset(data: Any, program: ProgramSpec) -> None:
    if named := [field for field in _OF_SHARDS if getattr(data, field)]:
        raise Unfit("samples in its place: programs lease numbers from 0 to samples alone", named[0])
    if program.level == 0 and (data.samples, data.batch_size) != (1, 1):
        raise Unfit("leave dataset out at level 0, or state program.level 1 and read stretto.agent.samples")


def _check_resources(resources: Any, program: ProgramSpec) -> None:
    workers, initial = resources.workers, resources.initial
    count = workers.count
    if resources.least.servers or resources.most.servers or resources.ps.extended:
        raise Unfit("leave ps out beside program: there are no parameter servers", "ps")
    if resources.data.mode != "off" and program.level == 0:
        raise Unfit("leave data out at level 0: data workers compute items of stretto.agent.prepared", "data")
    if workers.devices or workers.dense != "servers":
        named = "devices" if workers.devices else "dense"
        raise Unfit(f"leave {named} out beside program; workers.extended may be stated", "workers", named)
    if initial is not None and (initial.servers or initial.groups):
        named = "groups" if initial.groups else "ps"
        raise Unfit("leave ps, ps_cpu_cores, ps_memory_bytes and groups out beside program", "initial", named)
    if program.level == 0 and count.max != 1 and program.object is None:
        raise Unfit("1 at level 0: each worker would run all of the program", "workers", "count", "max")
    if program.consistent and not program.together and count.max != 1:
        one = "1 at level 2, since programs of several workers do not stand at one step when a checkpoint is taken; or "
        raise Unfit(f"{one}program.resize restart, with which they are ranks of one program", "workers", "count", "max")
    if program.resize == "none" and count.min != count.max:
        told = f"instead of {count.min} and {count.max}"
        raise Unfit(f"min = max beside program.resize none, {told}", "workers", "count")


def _check_ranks(ranks: int, data: Any) -> None:
    """Refuse data of which some step would have fewer samples than ranks: each rank takes part in each step.

    A step leaves no rest of a shard, or one of at least as many samples as there may be ranks, which a full step of
    any number of ranks allows from twice so many samples a batch on.
    """
    most = "workers", "count", "max"
    if data.batch_size < 2 * ranks:
        remedy = f"at most {data.batch_size // 2}, half of dataset.batch_size {data.batch_size}, beside resize restart"
        raise Unfit(remedy, *most)
    if 0 < (rest := data.samples % (data.batch_size * data.batches_per_shard)) < ranks:
        remedy = (
            f"at most {rest} beside resize restart, the samples of the last shard of dataset.samples {data.samples}"
        )
        raise Unfit(f"{remedy}, or other dataset.samples: each rank has a sample in each step", *most)

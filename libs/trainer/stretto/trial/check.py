"""A trial of a user's model and data before a job: everything that is wrong with them, and what they will cost.

``python -m stretto.trial.check`` reads a `Request` as JSON from its standard input and tells a `Report` (progress.py).
`stretto check` runs it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from stretto_messages.base import counted
from stretto_wire import JobSpec, WireError
from stretto_wire.jobspec.commented import commented

from ..errors import DataError, ExportRefused, StrettoError
from ..model.entry_point import Task, check_reads_partitions, load, read_of
from ..progress import speaker

if TYPE_CHECKING:
    from ..model.program import Options, Program

STEPS = 60
LEAST = {"pull": "bfloat16", "push": "int8"}
"""The types of `model.wire` with which the fewest bytes travel."""
_READ_S = 2.0
"""The time for which reading alone is measured."""
_MILLION = 10**6
NO_SAMPLES = (
    "the number of samples is not known: give --samples, or the task a reader with `train_samples` or `size`, "
    "or an attribute `samples`"
)


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The model and the data to try. samples: of one epoch; 0: as many as the task's reader says. job: all fields of
    the job file that states them, if one does. is_of_cuts: nothing is tried but whether its stages can be cut."""

    entry: str
    path: str = ""
    arguments: dict[str, str | int | float | bool] = field(default_factory=dict[str, str | int | float | bool])
    name: str = "my-job"
    samples: int = 0
    partition: str = ""
    batch_size: int = 512
    embedding_dim: int | None = None
    steps: int = STEPS
    job: dict[str, Any] = field(default_factory=dict[str, Any])
    is_of_cuts: bool = False


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """An obstacle. where: `model`, `data` or `job`; text: what is wrong, the value and the remedy."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class CheckLayer:
    """A layer as stages count them; 0 is the rows. uncut: why no stage can begin with it; "" where one can."""

    number: int
    name: str
    uncut: str


@dataclass(frozen=True, slots=True)
class Figures:
    """The measures of the trial, on this machine and with both sides of a job in one process.

    read_samples_per_s: of `read` alone. row_bytes: of a key on the parameter servers, by table.
    """

    framework: str
    rule: str
    """The update of every parameter: optimizer, rate and clipping."""
    compared: str
    """The reason why the first steps were not compared with the framework's; "" where both are the same."""
    export: str
    """The reason why the usual export will be refused; "" where nothing speaks against it."""
    samples_read: int
    read_samples_per_s: float
    steps_per_s: float
    loss_first: float
    loss_last: float
    keys_per_sample: float
    row_bytes: tuple[float, ...]
    dense_parameters: int
    step_bytes: float
    step_bytes_least: float
    """The bytes of a step between a worker and its parameter servers: as float32, and as `LEAST` says."""
    worker_memory_bytes: int

    @property
    def bytes_per_million_keys(self) -> float:
        """Memory of the parameter servers for a million keys: the mean over the tables."""
        return _MILLION * float(np.mean(self.row_bytes)) if self.row_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a trial. job: a job file, ready to submit where nothing was found; "" where one was given.

    layers: of the model, if it could be built. uncut: why the model is not cut between its layers behind the rows,
    which then are one; "" where it may be.
    """

    findings: list[CheckFinding]
    figures: Figures | None
    job: str
    layers: list[CheckLayer] = field(default_factory=list[CheckLayer])
    uncut: str = ""

    def document(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        found = asdict(self)
        if self.figures is not None:
            found["figures"]["bytes_per_million_keys"] = self.figures.bytes_per_million_keys
        return found


def check(request: CheckRequest, told: Callable[[str], None] = lambda _: None) -> Report:
    """Try a model and its data, and go on after an obstacle as far as possible. told: called with each stage."""
    from ..build import make_program, options_of

    findings: list[CheckFinding] = []
    try:
        spec = JobSpec.parse(request.job or _job(request, request.samples, None))
    except WireError as error:
        return Report([CheckFinding("job", str(each)) for each in error.findings], None, "")
    task = program = None
    figures = None
    samples = request.samples
    told("importing the model's code")
    with _Noting(findings, "model"):
        task = load(spec.model)
    if task is not None:
        samples = samples or samples_of(task)
        if not samples and not request.partition:
            findings.append(CheckFinding("data", NO_SAMPLES))
        if not request.is_of_cuts:
            told("reading")
            with _Noting(findings, "data"):
                if request.partition:
                    check_reads_partitions(task)
                _check_reading(task, request.partition, min(request.batch_size, samples or request.batch_size))
        told("building the model")
        with _Noting(findings, "model"):
            program = make_program(task, options_of(spec) if request.job else _options(request, spec, samples))
    layers, uncut = ([], "") if program is None else _layers(program, spec, findings)
    if program is not None and not request.is_of_cuts and not any(finding.where == "data" for finding in findings):
        told(f"training {counted(request.steps, 'step')}")
        with _Noting(findings, "model"):
            figures = _measured(program, request, samples)
    job = "" if findings or request.job else commented(_job(request, samples, task))
    return Report(findings, figures, job, layers, uncut)


def _options(request: CheckRequest, spec: JobSpec, samples: int) -> Options:
    """Return the settings of a model whose job file is yet to be written."""
    from ..model.program import FIRST_SAMPLES, Options, ends_in_single

    return Options(
        batch_size=request.batch_size,
        embedding_dim=spec.model.embedding_dim,
        is_dimension_stated=request.embedding_dim is not None,
        first_samples=min(FIRST_SAMPLES, samples or request.batch_size),
        first_partition=request.partition,
        ends_in_single=ends_in_single([samples], request.batch_size),
    )


def _layers(program: Program, spec: JobSpec, findings: list[CheckFinding]) -> tuple[list[CheckLayer], str]:
    """Return the layers of a model, and why it is not cut between them. A stage of the job that cannot begin where the
    initial plan says is noted."""
    found: list[CheckLayer] = []
    uncut = ""
    with _Noting(findings, "model"):
        found = [CheckLayer(number, each.name, each.uncut) for number, each in enumerate(program.layers)]
        uncut = program.uncut
    plan = spec.resources.initial
    begins = {} if plan is None else {place.stage: place.first_layer for place in plan.worker_places}
    for stage in sorted({*begins} - {0}, reverse=True):  # a cut is told by the stage that begins with it
        with _Noting(noted := list[CheckFinding](), "job"):
            program.part(begins[stage], begins.get(stage + 1))
        if noted:
            findings.append(CheckFinding(noted[0].where, f"resources.initial.groups, stage {stage}: {noted[0].text}"))
            break
    return found, uncut


def samples_of(task: Task) -> int:
    """Return the samples that a task says it has, by itself or by its reader; 0 if it does not."""
    for owner in (task, *vars(task).values()) if hasattr(task, "__dict__") else (task,):
        for name in ("train_samples", "samples", "size"):
            found = getattr(owner, name, None)
            if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                return found
    return 0


def held_out_of(task: Task) -> int:
    """Return the samples that follow those to train, as the task's reader says; 0 if it does not."""
    for reader in vars(task).values() if hasattr(task, "__dict__") else ():
        size, train = getattr(reader, "size", None), getattr(reader, "train_samples", None)
        if isinstance(size, int) and isinstance(train, int):
            return size - train
    return 0


class _Noting:
    """Notes an error of the user's model or data, once, instead of raising it."""

    def __init__(self, findings: list[CheckFinding], where: str) -> None:
        self._findings, self._where = findings, where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, StrettoError):
            return False
        if not any(finding.text == str(error) for finding in self._findings):
            self._findings.append(CheckFinding("data" if isinstance(error, DataError) else self._where, str(error)))
        return True


# --- data ---------------------------------------------------------------------------------------------------


def _check_reading(task: Task, partition: str, length: int) -> None:
    """Raise DataError unless `read` gives the same samples whenever and from wherever they are read."""
    first, again = (read_of(task, 0, length, partition) for _ in range(2))
    if (name := _different(first, again)) is not None:
        raise DataError(
            f"read(0, {length}) gave another {name!r} when it was called again: samples have to be the same in every "
            "process at any time; seed what is random by the sample's number"
        )
    if any(len(each) != length for each in _leaves(first).values() if hasattr(each, "__len__")):
        return  # bags one after the other, which begin elsewhere in a batch that begins elsewhere
    half = length // 2
    if half and (name := _different(_cut(first, half, length), read_of(task, half, length - half, partition))):
        raise DataError(
            f"read({half}, {length - half}) gave another {name!r} than the samples from {half} on of "
            f"read(0, {length}): sample number i has to be the same however it is read"
        )


def _leaves(batch: Any, name: str = "") -> dict[str, Any]:
    """Return the arrays of a batch by name, whatever it is made of."""
    if isinstance(batch, Mapping):
        items = [(str(key), value) for key, value in cast("Mapping[Any, Any]", batch).items()]
    elif isinstance(batch, tuple):
        items = [(str(number), value) for number, value in enumerate(cast("tuple[Any, ...]", batch))]
    else:
        return {name: batch}
    found: dict[str, Any] = {}
    for key, value in items:
        found |= _leaves(value, f"{name}.{key}" if name else key)
    return found


def _cut(batch: Any, start: int, stop: int) -> Any:
    return {name: array[start:stop] for name, array in _leaves(batch).items()}


def _different(one: Any, other: Any) -> str | None:
    """Return the name of an array that two readings of the same samples do not share."""
    ours, theirs = _leaves(one), _leaves(other)
    if ours.keys() != theirs.keys():
        return sorted(ours.keys() ^ theirs.keys())[0]
    return next((name for name in ours if not _equal(ours[name], theirs[name])), None)


def _equal(one: Any, other: Any) -> bool:
    ours, theirs = _plain(one), _plain(other)
    if isinstance(ours, list) or isinstance(theirs, list):  # of different lengths
        return ours == theirs
    if ours.shape != theirs.shape:
        return False
    same = (ours == theirs) | ((ours != ours) & (theirs != theirs))  # what is missing in both is the same
    return bool(np.all(same))


def _plain(value: Any) -> Any:
    """Return an array, or lists where the samples have different lengths."""
    if hasattr(value, "to_list"):  # ragged tensors
        return value.to_list()
    if isinstance(value, (list, tuple)):
        lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in cast("list[Any]", value)]
        return lists if any(isinstance(each, list | tuple) for each in lists) else np.asarray(lists)
    return np.asarray(value)


# --- model --------------------------------------------------------------------------------------------------


def _measured(program: Program, request: CheckRequest, samples: int) -> Figures:
    """Train some steps on a parameter server in this process."""
    from ..engine.transfer import Wire
    from ..model.one_step import compare_steps
    from .local import Here

    compared = compare_steps(program)
    length = max(1, min(samples or request.steps * request.batch_size, request.steps * request.batch_size))
    read_begun, read = time.perf_counter(), 0
    while time.perf_counter() - read_begun < _READ_S and read < length:
        step = min(request.batch_size, length - read)
        program.read(read, step, request.partition)
        read += step
    read_s = max(1e-9, time.perf_counter() - read_begun)
    with Here(program, request.batch_size) as here:
        [first] = here.train(0, min(length, request.batch_size), request.partition)
        here.window()  # without the first step, which is slower
        last = here.train(0, length, request.partition)[-1]
        window = here.window()
        keys = program.index(program.read(0, min(length, request.batch_size), request.partition))
    of_sample = sum(table.inverse.size for table in keys.tables) / min(length, request.batch_size)
    return Figures(
        framework=program.framework,
        rule=program.updates.told(),
        compared=compared,
        export=_export_refused(program),
        samples_read=read,
        read_samples_per_s=read / read_s,
        steps_per_s=1.0 / max(1e-9, window.step_s),
        loss_first=first,
        loss_last=last,
        keys_per_sample=of_sample,
        row_bytes=tuple(program.layout.row_bytes(number) for number in range(len(program.layout.tables))),
        dense_parameters=program.layout.dense_size,
        step_bytes=Wire().step_bytes(program.layout, keys),
        step_bytes_least=Wire.of("float32", LEAST).step_bytes(program.layout, keys),
        worker_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def _export_refused(program: Program) -> str:
    if program.framework != "Keras":
        return ""
    from ..export.keras_model import check_described

    try:
        check_described(program.model)
    except ExportRefused as refused:
        return str(refused)
    return ""


def _job(request: CheckRequest, samples: int, task: Task | None) -> dict[str, Any]:
    """Return the fields of a job file for what was tried."""
    model: dict[str, Any] = {"entry": request.entry}
    if request.path:
        model["path"] = str(Path(request.path).resolve())
    if request.arguments:
        model["arguments"] = request.arguments
    if request.embedding_dim is not None:
        model["embedding_dim"] = request.embedding_dim
    data: dict[str, Any] = {"batch_size": request.batch_size}
    if request.partition:
        data["partitions"] = [{"name": request.partition, "samples": max(1, samples)}]
    else:
        data["samples"] = max(1, samples)
    held_out = 0 if task is None or request.partition else held_out_of(task)
    return {"name": request.name, "model": model, "dataset": data} | ({"evaluate": held_out} if held_out else {})


def main() -> None:
    """Run a trial for another process."""
    say = speaker()
    request = CheckRequest(**json.load(sys.stdin))
    sys.path.insert(0, request.path or ".")
    say({"result": check(request, lambda stage: say({"progress": [stage, 0, 1]})).document()})


if __name__ == "__main__":
    main()

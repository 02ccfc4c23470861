"""An export: a checkpoint of a job and the job's code, made into files that programs without Stretto read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import psutil
from numpy.typing import NDArray
from stretto_messages.values import BUCKETS
from stretto_wire.jobspec.spec import DatasetSpec, JobSpec

from ..build import make_program, options_of
from ..errors import ExportRefused, ModelRefused
from ..model.adapted import AdaptedProgram
from ..model.entry_point import Task, load
from ..model.program import Program
from . import parquet, safetensors
from .checkpoint_source import Checkpoint, Rows, open_checkpoint
from .parquet import Earlier, file_of, open_earlier
from .tables import Change, ExportedTable, LayerTable, all_rows, changes, tables_of
from .target import Target

Format = Literal["keras", "savedmodel", "parquet", "safetensors"]
FORMATS: tuple[Format, ...] = ("keras", "savedmodel", "parquet", "safetensors")
VERSION = 1
MODEL, DENSE = "model", "dense"
"""Names of the model with its tables, and of its dense part beside them."""

Progress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much it is)."""
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """An export. checkpoint: URL of a manifest. format: None for the usual one of the model's framework."""

    job: JobSpec
    checkpoint: str
    to: str
    format: Format | None = None
    since: str = ""
    """An earlier export of the job as Parquet: only rows that changed since are written."""
    memory_bytes: int | None = None
    """Memory that the export may take; None for what the machine has available."""


@dataclass(frozen=True, slots=True)
class _Export:
    program: Program
    checkpoint: Checkpoint
    tables: Sequence[ExportedTable]
    target: Target
    progress: Progress


def _silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def export(request: ExportRequest, progress: Progress = _silent) -> dict[str, Any]:
    """Write an export of a job; return its export.json.

    Raises ExportRefused, and what reading the checkpoint or building the model raises.
    """
    with Target(request.to) as target:
        progress("reading the checkpoint", 0, 1)
        checkpoint = open_checkpoint(request.checkpoint)
        if checkpoint.job != request.job.name:
            raise ExportRefused(f"checkpoint {request.checkpoint} is of job {checkpoint.job}, not {request.job.name}")
        earlier = open_earlier(request.since, checkpoint) if request.since else None
        progress("building the model", 0, 1)
        # all fields of a submitted job are stated; the job has shown that its model fits them
        options = replace(options_of(request.job), is_dimension_stated=False)
        program = make_program(_loaded(request.job), options)
        steps = steps_of(request.job.dataset, checkpoint.samples)
        return write(program, checkpoint, target, steps, request.format, earlier, request.memory_bytes, progress)


def write(
    program: Program,
    checkpoint: Checkpoint,
    target: Target,
    steps: int,
    format: Format | None = None,
    earlier: Earlier | None = None,
    memory_bytes: int | None = None,
    progress: Progress = _silent,
) -> dict[str, Any]:
    """Write an export of a program, and give it its name; return its export.json. Arguments are named as in Request.

    steps: batches that the model was trained on.
    Raises ExportRefused and CheckpointError.
    """
    tables = tables_of(program, checkpoint)
    program.load_into_model(*checkpoint.dense(), steps)
    chosen = _format(program, format, earlier)
    made = _Export(program, checkpoint, tables, target, progress)
    if chosen == "parquet":
        _write_dense(made)
        counts = _write_tables(made, earlier)
    elif chosen == "safetensors":
        counts = _write_safetensors(made)
    else:
        counts = _write_model(made, chosen, memory_bytes)
    return target.publish(_document(made, chosen, counts, earlier))


def steps_of(data: DatasetSpec, samples: int) -> int:
    """Return the batches that the first samples of a job make; the last batch of an epoch or partition may be short."""
    left, steps = samples, 0
    for size in [part.samples for part in data.partitions] or [data.samples] * data.epochs:
        steps += math.ceil(min(left, size) / data.batch_size)
        left -= min(left, size)
    return steps + math.ceil(left / data.batch_size)


def _loaded(job: JobSpec) -> Task:
    try:
        return load(job.model)
    except ModelRefused as error:
        raise ExportRefused(f"{error}; on this machine, --path names the folder and --set its arguments") from error


def _document(made: _Export, chosen: Format, counts: Mapping[str, int], earlier: Earlier | None) -> dict[str, Any]:
    checkpoint = made.checkpoint
    return {
        "version": VERSION,
        "job": checkpoint.job,
        "format": chosen,
        "framework": {"Keras": "keras", "PyTorch": "torch"}[made.program.framework],
        "checkpoint": {
            "id": checkpoint.id,
            "url": checkpoint.url,
            "samples": checkpoint.samples,
            "images": [*checkpoint.digests],
        },
        "since": None if earlier is None else earlier.reference,
        "tables": {
            table.name: {
                "rows": counts[table.name],
                "dimension": table.dimension,
                "key": table.key,
                "initial": {name: value for name, value in asdict(table.table).items() if name != "optimizer"},
            }
            for table in made.tables
        },
    }


def _format(program: Program, asked: Format | None, earlier: Earlier | None) -> Format:
    """Return the format to write. Raises ExportRefused for a format that does not suit."""
    usual: Format = "keras" if _is_keras(program) else "safetensors"
    chosen = asked or (usual if earlier is None else "parquet")
    if earlier is not None and chosen != "parquet":
        raise ExportRefused(f"format = {chosen} cannot hold changes alone: leave --since out, or use --format parquet")
    if chosen in ("keras", "savedmodel") and not _is_keras(program):
        raise ExportRefused(
            f"format = {chosen} is for Keras models, and {type(program.model).__name__} is a PyTorch module: use "
            "--format safetensors or parquet"
        )
    return chosen


def _is_keras(program: Program) -> bool:
    return program.framework == "Keras"


def _is_adapted(program: Program) -> bool:
    return isinstance(program, AdaptedProgram)


# --- tables beside the model --------------------------------------------------------------------------------


def _write_tables(made: _Export, earlier: Earlier | None) -> dict[str, int]:
    """Write a file for each bucket of each table; return the rows of each table."""
    counts = dict.fromkeys([table.name for table in made.tables], 0)
    for bucket in range(BUCKETS):
        made.progress("writing tables", bucket, BUCKETS)
        for table in made.tables:
            change = _change(table, bucket, earlier)
            if len(change.rows.keys) or len(change.gone):
                with made.target.writer(file_of(table.name, bucket)) as file:
                    parquet.write(file, table.key, change)
            counts[table.name] += len(change.rows.keys)
    return counts


def _change(table: ExportedTable, bucket: int, earlier: Earlier | None) -> Change:
    nothing = np.zeros(0, np.int64)
    if earlier is None:
        return Change(table.rows(bucket), nothing)
    known = table.changed(bucket, earlier.images)
    if known is not None:
        return Change(known, nothing)
    return changes(table, bucket, earlier.rows(table.name, table.key, table.dimension, bucket))


def _write_dense(made: _Export) -> None:
    """Write the model without its tables: it takes their rows as inputs.

    An adapted model has no such inputs. Its other variables are written by their paths.
    """
    made.progress("writing the dense model", 0, 1)
    if _is_keras(made.program) and not _is_adapted(made.program):
        with made.target.local(f"{DENSE}.keras") as path:
            made.program.model.save(path)
        return
    tensors = _tensors(made.program)
    with made.target.local(f"{DENSE}.safetensors") as path:
        _fill(path, tensors, made.checkpoint)


# --- tables in the model ------------------------------------------------------------------------------------


def _write_safetensors(made: _Export) -> dict[str, int]:
    """Write the dense parameters by their names, and each table: by the names of its parameter in a `state_dict`, else
    as `tables/<name>/rows` and, where needed, `/keys`."""
    dense = _tensors(made.program)
    counts = {table.name: _count(table) for table in made.tables}
    names = {table.name: _names_of(table) for table in made.tables}
    wanted: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for table in made.tables:
        if table.key == "key":
            wanted[f"tables/{table.name}/keys"] = np.int64, (counts[table.name],)
        wanted |= dict.fromkeys(names[table.name], (np.float32, (counts[table.name], table.dimension)))
    with made.target.local(f"{MODEL}.safetensors") as path:
        room = _fill(path, dense, made.checkpoint, wanted)
        begins = dict.fromkeys(counts, 0)
        for bucket in range(BUCKETS):
            made.progress("writing tables", bucket, BUCKETS)
            for table in made.tables:
                rows, begin = table.rows(bucket), begins[table.name]
                begins[table.name] = end = begin + len(rows.keys)
                if table.key == "key":
                    room[f"tables/{table.name}/keys"][begin:end] = rows.keys
                at = rows.keys if table.key == "id" else slice(begin, end)
                for name in names[table.name]:
                    room[name][at] = rows.weights
        del room
    return counts


def _names_of(table: ExportedTable) -> tuple[str, ...]:
    """Return the names of the tensors that hold the rows of a table."""
    own = table.layer.parameters if isinstance(table, LayerTable) else ()
    return own or (f"tables/{table.name}/rows",)


def _count(table: ExportedTable) -> int:
    """Return how many rows a table has. A row that changed may be in several images."""
    return table.count() if table.key == "id" else sum(len(table.rows(bucket).keys) for bucket in range(BUCKETS))


def _fill(path: Any, dense: Tensors, checkpoint: Checkpoint, more: Mapping[str, Any] | None = None) -> Tensors:
    """Write a file of safetensors with these values; return its tensors, of which `more` are still to be filled."""
    about = {"job": checkpoint.job, "checkpoint": checkpoint.id, "samples": str(checkpoint.samples)}
    wanted = {**(more or {}), **{name: (value.dtype, value.shape) for name, value in dense.items()}}
    room = safetensors.create(path, wanted, about)
    for name, value in dense.items():
        room[name][...] = value
    return room


def _tensors(program: Program) -> Tensors:
    """Return all values of the dense model by their names."""
    if _is_keras(program):
        from .keras_model import dense_variables

        return {variable.path: variable.numpy() for variable in dense_variables(program)}
    tables = {name for each in program.embeddings for name in each.parameters}
    return {name: each.numpy() for name, each in program.model.state_dict().items() if name not in tables}


def _write_model(made: _Export, chosen: Format, memory_bytes: int | None) -> dict[str, int]:
    """Write one model of Keras' own layers, tables and all."""
    from . import keras_model

    rows = sum(table.count() for table in made.tables)
    needed = sum(keras_model.bytes_of(table) for table in made.tables)
    available = psutil.virtual_memory().available if memory_bytes is None else memory_bytes
    if needed > available:
        raise ExportRefused(
            f"format = {chosen} needs about {needed} bytes of memory for {rows} rows, and {available} are available: "
            "use --format parquet, which needs those of one bucket"
        )
    values: dict[str, Rows] = {}
    for number, table in enumerate(made.tables):
        made.progress("reading tables", number, len(made.tables))
        values[table.name] = all_rows(table)
    made.progress("writing the model", 0, 1)
    if _is_adapted(made.program):
        weights = {t.layer.layer: values[t.name].weights for t in made.tables if isinstance(t, LayerTable)}
        made.program.restore(weights)
        model = made.program.model
    else:
        model = keras_model.with_tables(made.program, values)
    if chosen == "keras":
        with made.target.local(f"{MODEL}.keras") as path:
            keras_model.save(model, path)
    else:
        with made.target.local(MODEL) as path:
            keras_model.save_for_serving(made.program, model, path)
    return {name: len(rows.keys) for name, rows in values.items()}

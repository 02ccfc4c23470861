"""The model of a job as a worker uses it, whatever framework it is written in: batches, keys, tables, gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import BUCKETS, SLICES
from stretto_parameters import EVERY_KEY, RowPolicy

from ..engine.layout import F32, KeyBatch, Layout, Table
from ..errors import ModelRefused
from ..optimizers import Update, Updates, check_dense, resolve
from ..parts import FIRST_LAYER, Found, Given, ModelLayer, Part, Rest, Returned
from ..readers import Batch
from .entry_point import Task
from .one_step import Compared
from .reading import BatchReader, Feature, Prepared, Reading

ROWS = "rows"
LARGEST_EMBEDDING = 1_000_000
"""Floats of the largest embedding layer that may be part of the dense parameters, which every step pulls."""

FIRST_SAMPLES = 16
"""Samples that an adapted model is compared with the original on."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of a batch's mean loss: rows [n, dimension] of each table, dense [dense_size]; state_delta [state_size]
    is added. row_squares [n, dimension]: the squares of each occurrence of a row in the batch, added up, as Keras takes
    them; None for a table, or no entry at all: the squares of `rows`. dense_squares [dense_size]: likewise, where a
    dense parameter is looked up row by row; None: the squares of `dense`. is_pushed: whoever has computed them has
    pushed them, too, and all but the loss are empty.
    """

    loss: float
    rows: tuple[F32, ...]
    dense: F32
    state_delta: F32
    row_squares: tuple[F32 | None, ...] = ()
    dense_squares: F32 | None = None
    is_pushed: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingRows:
    """An embedding layer of the user's own model, whose rows live on the parameter servers.

    The row of id i, 0 <= i < ids, has the key `i | field << VALUE_BITS` in table `table` of the layout, and the first
    `dimension` floats there. initial [ids, dimension]: what the row adds to, None where a row is the weights
    themselves.
    """

    layer: str
    """Path of the layer in the model."""
    table: int
    field: int
    ids: int
    dimension: int
    initial: F32 | None = None
    fixed: tuple[int, F32] | None = None
    """The id of a row that is never trained, and its weights."""
    parameters: tuple[str, ...] = ()
    """Names of the table in a `state_dict`; none of a Keras layer."""

    def whole(self, ids: NDArray[np.int64], rows: F32) -> F32:
        """Return the weights of ids, whose rows the servers have."""
        weights = rows if self.initial is None else rows + self.initial[ids]
        if self.fixed is not None and (ids == self.fixed[0]).any():
            weights = np.where((ids == self.fixed[0])[:, None], self.fixed[1], weights)
        return weights


class Program(Compared, Protocol):
    """A model ready to train. The same user code and seed give the same layout and initial values in every process."""

    task: Task
    tables: Mapping[str, Rows]
    """The tables of the layout by name: the name of the input that receives their rows, if there is such an input."""
    model: Any
    """The user's model, as `build` gave it."""
    embeddings: tuple[EmbeddingRows, ...]
    """The embedding layers of an adapted model; none where the task's own `keys` says what a row is."""
    set_by_build: Sequence[str] = ()
    """Names of what the task's `build` changed, which its `read` may use."""

    @property
    def reading(self) -> Reading | None:
        """All that another process needs to prepare the same batches; None if it needs the model."""
        ...

    def read(self, start: int, length: int, partition: str = "") -> Batch:
        """Call the user's ``read`` and check its batch. Raises DataError."""
        ...

    def index(self, batch: Batch) -> KeyBatch:
        """Return the unique keys of a batch. Raises DataError."""
        ...

    def prepare(self, start: int, length: int, partition: str = "") -> Prepared:
        """Read samples and index their keys: a pure function of its arguments. Raises DataError."""
        ...

    def prepared(self, batch: Batch) -> Prepared:
        """Return what a step needs of a batch that `read` gave. Raises DataError."""
        ...

    def no_keys(self) -> KeyBatch:
        """Return a batch without samples, to pull the dense parameters alone."""
        ...

    def load_into_model(self, dense: F32, state: F32, steps: int = 0) -> None:
        """Set the parameters of the user's model, to save or inspect it. steps: batches that it was trained on."""
        ...

    def restore(self, tables: Mapping[str, F32]) -> None:
        """Give the embedding layers of an adapted model their weights [ids, dimension] back, by layer. The program
        cannot be used afterwards.
        """
        ...

    def step(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Gradients:
        """Compute the gradients. rows: of each table, [n unique, dimension]. Raises ModelRefused for a loss that is not
        finite.
        """
        ...

    def predict(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Any:
        """Return the probabilities of label 1: [n]; of a model without one binary output all outputs, nested as the
        model gives them. Another thread may be in `step` meanwhile.
        """
        ...

    @property
    def layers(self) -> Sequence[ModelLayer]:
        """The layers in the order in which a step passes them; the first are the rows."""
        ...

    @property
    def uncut(self) -> str:
        """Why the model is not cut between its layers behind the rows, which then are one; "" where it may be."""
        ...

    def part(self, first: int, until: int | None) -> Part:
        """Return the layers from one behind the rows up to another one, or to the end. Raises ModelRefused."""
        ...

    def judge(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Judged:
        """Predict a batch and compare with its labels."""
        ...

    def metrics(self) -> Metrics | None:
        """Return the metrics that the user compiled, without a sample; None if there are none."""
        ...

    def warm(self) -> None:
        """Do what would make the first step slower than the others."""
        ...


class WholePart:
    """All layers of a program behind the rows, as its step computes them."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.pulled = self.pushed = np.arange(program.layout.slices)

    def step(self, given: Given, dense: F32, state: F32, rest: Rest, turn: AbstractContextManager[Any]) -> Found:
        """Compute a step. Raises ModelRefused."""
        with turn:
            found = self._program.step(given.rows, given.keys, dense, state, given.batch)
        answer = Returned(found.loss, found.rows, found.row_squares)
        return Found(answer, found.dense, found.state_delta, found.dense_squares)

    def warm(self) -> None:
        """Do what would make the first step slower than the others."""
        self._program.warm()


@dataclass(frozen=True, slots=True)
class Judged:
    """The predictions of a batch. label, score [n]: 0 or 1 and the probability of 1, of the first binary output.

    loss, loss_name: without a binary output, the mean of the model's own loss, and what it is. labels, outputs,
    weights: for metrics, nested as the user has them; inputs: likewise, where metrics need them.
    """

    samples: int
    label: F32 | None
    score: F32 | None
    loss: float = float("nan")
    labels: Any = None
    outputs: Any = None
    weights: Any = None
    inputs: Any = None
    loss_name: str = ""


class Metrics(ABC):
    """Metrics over the samples that are added. `close` must be called in the end: only one evaluation uses them."""

    @abstractmethod
    def add(self, judged: Judged) -> None:
        """Add a batch."""

    @abstractmethod
    def results(self) -> dict[str, float]:
        """Return each metric by its name."""

    @abstractmethod
    def sums(self) -> dict[str, tuple[float, float]]:
        """Return total and count of each metric that is a mean: these add up over several workers."""

    @abstractmethod
    def close(self) -> None:
        """Let the next evaluation begin."""


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a job that its model depends on (ModelSpec, DatasetSpec)."""

    optimizer: str | Mapping[str, object] = "adagrad"
    """A name, or what a task's `optimizer` may be, by `dense` and `rows`."""
    learning_rate: float = 0.05
    batch_size: int = 512
    """Samples of a step: a schedule by steps becomes one by samples."""
    embedding_dim: int = 16
    is_dimension_stated: bool = False
    """True if the specification states `embedding_dim`: a model of another width is then refused."""
    restore_from: str = ""
    """URL of a model with the weights to start with; empty to start with the initialisers' weights."""
    seed: int = 0
    row_weights: Literal["float32", "bfloat16"] = "float32"
    rows: RowPolicy = EVERY_KEY
    first_samples: int = FIRST_SAMPLES
    """Samples at the beginning of the data, or of `first_partition`, that a model may be tried on."""
    first_partition: str = ""
    ends_in_single: bool = False
    """True if the last batch of the data, or of a partition, has one sample."""
    has_devices: bool = False
    """True if the job gives this process devices of its own, such as a GPU, to compute on."""


def ends_in_single(samples: Iterable[int], batch_size: int) -> bool:
    """Return whether the last batch of some partitions has one sample, although others have more."""
    return any(count % batch_size == 1 for count in samples)


@dataclass(frozen=True, slots=True)
class Rows:
    """An input that receives embedding rows [n, fields, dimension]. fields: None where any number is fine.

    initial_scale, distribution: of the weights that rows begin with. is_difference: a row is added to initial values of
    its own.
    base: the digest of these, if they are not one number. rule: the number of the update rule of the rows.
    """

    fields: int | None
    dimension: int
    initial_scale: float = 0.05
    is_difference: bool = False
    base: str = ""
    distribution: Literal["uniform", "normal"] = "uniform"
    rule: int = 0


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a model by name: tables, whose rows they receive, and features, which are arrays of the batch."""

    tables: Mapping[str, Rows]
    features: Mapping[str, Feature]

    def ruled(self, updates: Updates) -> Inputs:
        """Return the inputs with the rule of each table, by its name."""
        return replace(self, tables={name: replace(of, rule=updates.rule_of(name)) for name, of in self.tables.items()})


@dataclass(frozen=True, slots=True)
class Variables:
    """The shapes of a model's trained parameters and of its states, by their names in the model."""

    shapes: Mapping[str, tuple[int, ...]]
    states: Mapping[str, tuple[int, ...]]


class ProgramBase(BatchReader, ABC):
    """The part of a program in which no framework has a say."""

    layout: Layout
    model: Any
    embeddings: tuple[EmbeddingRows, ...] = ()
    set_by_build: Sequence[str] = ()
    framework: str
    """Keras or PyTorch."""
    is_rounded = False
    """True if the model computes with fewer digits than float32 has."""
    clips_values = False
    """True if values of gradients are clipped where they are computed, each occurrence of a row by itself."""

    def __init__(
        self,
        task: Task,
        options: Options,
        inputs: Inputs,
        variables: Variables,
        updates: Updates,
    ) -> None:
        """Lay out the parameters. Raises ModelRefused for those without an update rule."""
        super().__init__(task, {name: of.fields for name, of in inputs.tables.items()}, inputs.features)
        self.tables = inputs.tables
        self.batch_size = options.batch_size
        self.first_samples, self.first_partition = options.first_samples, options.first_partition
        self._parameter_names = [*variables.shapes]
        self._shapes = [*variables.shapes.values()]
        self._state_names = [*variables.states]
        self._state_shapes = [*variables.states.values()]
        check_dense(updates, self._parameter_names)
        self.updates = updates
        rules = [each.optimizer for each in updates.rules]
        self.layout = Layout(
            tables=tuple(
                Table(
                    *(of.dimension, rules[of.rule], options.seed + i, of.initial_scale, options.row_weights, of.base),
                    distribution=of.distribution,
                )
                for i, of in enumerate(self.tables.values())
            ),
            dense_size=sum(map(size_of, self._shapes)),
            buckets=BUCKETS,
            slices=SLICES,
            state_size=sum(map(size_of, self._state_shapes)),
            optimizer=rules[updates.of_dense],
            rows=options.rows,
        )

    def restore(self, tables: Mapping[str, F32]) -> None:
        """Give the embedding layers their weights back: none here, since a model that takes rows has none."""
        if tables:
            raise ModelRefused(f"the model has no embedding layers {sorted(tables)} on the servers")

    # --- parts --------------------------------------------------------------------------------------------

    @property
    def uncut(self) -> str:
        """Why the model is not cut between its layers behind the rows, which then are one; "" where it may be."""
        return LIMITED_NORMS if self.updates.limits_norms else self._uncut()

    @property
    def layers(self) -> Sequence[ModelLayer]:
        """The layers in the order in which a step passes them; the first are the rows."""
        return [
            ModelLayer(ROWS),
            *([ModelLayer(f"{self._model_name} as a whole")] if self.uncut else self._cut_layers()),
        ]

    def part(self, first: int, until: int | None) -> Part:
        """Return the layers from one behind the rows up to another one, or to the end. Raises ModelRefused."""
        if (first, until) == (FIRST_LAYER, None):
            return WholePart(cast("Program", self))
        if why := self.uncut:
            layer, whose = (until, " of the next stage") if first == FIRST_LAYER else (first, "")
            raise ModelRefused(
                f"first_layer = {layer}{whose}: {self._model_name!r} is not cut between its layers: {why}; set "
                "resources.workers.stages: 2, which cuts behind the rows"
            )
        return self._part(first, until)

    @property
    def _model_name(self) -> str:
        return type(self.model).__name__

    def _uncut(self) -> str:
        """Return why a model of this kind is not cut between its layers; "" where it may be."""
        return "only functional Keras models with an input 'rows' and PyTorch modules that take rows have such cuts"

    def _cut_layers(self) -> Sequence[ModelLayer]:
        """Return the layers behind the rows of a model that may be cut between them."""
        raise NotImplementedError

    def _part(self, first: int, until: int | None) -> Part:
        """Return some layers of a model that may be cut between them. Raises ModelRefused."""
        raise NotImplementedError

    # --- computation --------------------------------------------------------------------------------------

    def judge(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Judged:
        """Predict a batch and compare with its labels."""
        label = np.asarray(batch["label"], np.float32).reshape(-1)
        return Judged(len(label), label, self.predict(rows, keys, dense, state, batch))

    def metrics(self) -> Metrics | None:
        """Return the metrics that the user compiled, without a sample; None if there are none."""
        return None

    @abstractmethod
    def initial_dense(self) -> F32:
        """Return the trained parameters as the user's initialisers made them: [dense_size]."""

    @abstractmethod
    def initial_state(self) -> F32:
        """Return what is not trained, such as moving statistics: [state_size]."""

    @abstractmethod
    def predict(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Any:
        """Return the probabilities of label 1: [n]."""

    def step(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Gradients:
        """Compute the gradients within their limits. rows: of each table, [n unique, dimension]. Raises ModelRefused
        for a loss that is not finite.
        """
        found = self._gradients(rows, keys, dense, state, batch)
        check_loss(found.loss)
        return self._clipped(found, keys)

    def _clipped(self, found: Gradients, keys: KeyBatch) -> Gradients:
        """Clip gradients, each variable of the user's as one array, although layers share tables of the store.

        A limit of norms counts each occurrence of a row, and its squares with it. After `global_norm` Keras has one
        gradient of a row, whose square is its own.
        """
        updates, of_tables = self.updates, [each.rule for each in self.tables.values()]
        if not self.clips_values:
            rows = tuple(updates.within(*each) for each in zip(of_tables, found.rows, strict=True))
            found = replace(found, rows=rows, dense=updates.within(updates.of_dense, found.dense))
        if not updates.limits_norms:
            return found
        variables = [(table, at) for _, table, at in self._variables(keys)]
        known = found.row_squares or [None] * len(found.rows)
        dense = pieces(found.dense, self._shapes)
        of_dense = [None] * len(dense) if found.dense_squares is None else pieces(found.dense_squares, self._shapes)
        scales = updates.scales(
            [*(of_tables[table] for table, _ in variables), *[updates.of_dense] * len(dense)],
            [*(found.rows[table][at] for table, at in variables), *dense],
            [*(None if (each := known[table]) is None else each[at] for table, at in variables), *of_dense],
        )
        of_rows = [np.ones((len(each), 1), np.float32) for each in found.rows]
        for (table, at), scale in zip(variables, scales, strict=False):
            of_rows[table][at] = scale
        of_each = np.repeat(np.array(scales[len(variables) :], np.float32), [each.size for each in dense])
        rows = tuple(each * scale for each, scale in zip(found.rows, of_rows, strict=True))
        squares = tuple(
            None if q is None or not self._keeps_squares(rule) else q * scale**2
            for rule, q, scale in zip(of_tables, known, of_rows, strict=True)
        )
        dense_squares = found.dense_squares
        if dense_squares is not None:
            dense_squares = dense_squares * of_each**2 if self._keeps_squares(updates.of_dense) else None
        return replace(found, rows=rows, dense=found.dense * of_each, row_squares=squares, dense_squares=dense_squares)

    def _keeps_squares(self, rule: int) -> bool:
        """Return whether squares of gradients are pushed once their norms are within limits."""
        return self.updates.rules[rule].optimizer.TAKES_SQUARES and self.updates.limits_of(rule).global_norm is None

    def _ruled(self, keys: KeyBatch) -> dict[int, list[str]]:
        """Return what is trained, as `named` names it, by the number of its rule."""
        of_tables = [each.rule for each in self.tables.values()]
        found: dict[int, list[str]] = {}
        for told, table, _ in self._variables(keys):
            found.setdefault(of_tables[table], []).append(told)
        for name in self._parameter_names:
            found.setdefault(self.updates.of_dense, []).append(_parameter(name))
        return found

    def _variables(self, keys: KeyBatch) -> Sequence[tuple[str, int, Any]]:
        """Return for each variable with rows what it is, its table, and where its rows are among the unique ones of
        the batch."""
        return [(f"the rows of input {name}", number, slice(None)) for number, name in enumerate(self.tables)]

    def named(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32) -> dict[str, F32]:
        """Return the weights of rows, parameters and states by what they are."""
        found = {told: rows[table][at] for told, table, at in self._variables(keys)}
        found |= dict(zip(map(_parameter, self._parameter_names), pieces(dense, self._shapes), strict=True))
        return found | dict(zip(map(state_of, self._state_names), pieces(state, self._state_shapes), strict=True))

    @abstractmethod
    def _gradients(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Gradients:
        """Compute the loss and its gradients."""


def updates_of(
    task: Task, options: Options, given: object, foreign: Callable[[Any], Update], tables: Sequence[str]
) -> Updates:
    """Return the updates of a model with these tables. given: the task's optimizer or the compiled model's, if any;
    foreign: reads a framework's optimizer. Raises ModelRefused."""
    return resolve(
        given,
        foreign,
        tables,
        clipping=getattr(task, "clipping", None),
        kind=options.optimizer,
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
    )


LIMITED_NORMS = "the norms of its gradients are limited, for which one process needs all layers"


def check_loss(loss: float) -> None:
    """Raise ModelRefused for a loss that is not finite."""
    if not np.isfinite(loss):
        raise ModelRefused(f"the loss is {loss}: training diverged; lower model.learning_rate or check the loss")


def _parameter(name: str) -> str:
    return f"the parameter {name}"


def state_of(name: str) -> str:
    """Return what a state is, in the words of a comparison."""
    return f"the state {name}"


def state_refused(name: str, dtype: Any) -> ModelRefused:
    """Return the refusal of a state that is not on the servers, and that a step changes."""
    return ModelRefused(
        f"the state {name} of type {dtype} changes in a step, and only float32 ones are on the servers: each worker "
        "would count for itself, and no checkpoint, evaluation or export would have it; make it float32"
    )


def distinct(names: Sequence[str]) -> list[str]:
    """Return names with a number behind each that came before."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def size_of(shape: tuple[int, ...]) -> int:
    """Return the number of elements."""
    return int(np.prod(shape, dtype=np.int64))


def flat(values: Sequence[Any]) -> F32:
    """Return arrays of any shapes as one vector."""
    return np.concatenate([np.zeros(0, np.float32), *(np.asarray(v, np.float32).reshape(-1) for v in values)])


def pieces(vector: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Cut a vector (an array, or a tensor with `reshape`) into views of these shapes."""
    found: list[Any] = []
    position = 0
    for shape in shapes:
        size = size_of(shape)
        found.append(vector[position : position + size].reshape(shape))
        position += size
    return found


def check_inputs(tables: Mapping[str, Rows], names: Sequence[str], options: Options, remedy: str) -> None:
    """Raise ModelRefused if no input receives rows, or if rows have another width than the specification says."""
    if not tables:
        raise ModelRefused(f"the model has inputs {[*names]}, none named {ROWS!r}; {remedy}")
    if options.is_dimension_stated and ROWS in tables and tables[ROWS].dimension != options.embedding_dim:
        raise ModelRefused(
            f"model.embedding_dim = {options.embedding_dim}, but the input {ROWS!r} has {tables[ROWS].dimension} "
            "floats per row; make them equal"
        )


def is_rows(name: str) -> bool:
    """Return whether an input of this name receives embedding rows: `rows`, or one of several `rows_…`."""
    return name == ROWS or name.startswith(f"{ROWS}_")

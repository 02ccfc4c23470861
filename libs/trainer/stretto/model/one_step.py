"""The comparison of a model's first steps by a worker and the parameter store with its first steps by its framework.

Stretto's own path is the program's step, the store in this process and its update; the other one is the user's model
called by Keras or PyTorch alone, and updated by the optimizer as the user gave it. Both begin with the same weights,
states and seeds, and train the same batch twice: the second step shows what optimizer and layers have kept of the
first one. Tables are cut to the rows of the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from stretto_parameters import EVERY_KEY, Own, Push, Store

from ..engine.layout import F32, KeyBatch, Layout
from ..errors import DataError, ModelRefused, StrettoError
from ..optimizers import Clipping, Update, Updates
from ..readers import Batch

STEPS = 2
REPEATED = 4
"""Samples that the batch has twice, so that some rows are looked up several times."""
_TOLERANCE = 1e-5
"""Largest difference of a loss or a state, relative and absolute, and of a weight, for each step, as a share of how far
its variable went."""
_ROUNDING = 2.0**-20
"""Largest difference of a weight as a share of itself: eight units of the last place of float32."""
_NOISE = 1e-6
"""A gradient, as a share of the largest one of the model, that sums in another order make of 0."""
_AMPLIFIED = 4.0
"""The factor by which an optimizer that divides by the gradient may enlarge the gradient's noise in a weight."""
_STORE_BYTES_MAX = 2**32
_LINE = "\n"


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a step: its loss, and every parameter, row and state by name."""

    loss: float
    values: Mapping[str, F32]


@dataclass(frozen=True, slots=True)
class Ruled:
    """An update rule with the names of the variables that have it.

    rule: a fresh optimizer of the framework over these, or a `Reference` where it has none. limits: of their gradients,
    where an optimizer knows none itself.
    """

    rule: Any
    names: Sequence[str]
    limits: Clipping = field(default_factory=Clipping)


class Plain(ABC):
    """The user's model as its framework trains it."""

    def __init__(self, trained: Mapping[str, Any], rules: Sequence[Ruled], together: Clipping) -> None:
        """Take a model. trained: variables by name; rules: what updates them; together: limits of all gradients."""
        self.largest: dict[str, F32] = {}
        """The largest sizes of the gradients of each trained value so far, by name."""
        self._trained = trained
        self._rules = rules
        self._together = together

    @abstractmethod
    def step(self) -> Stepped:
        """Train the batch once."""

    def saw(self, name: str, gradient: F32) -> None:
        """Note the gradient of a value."""
        self.largest[name] = np.maximum(np.abs(gradient), self.largest.get(name, np.float32(0)))


@dataclass(frozen=True, slots=True)
class Trial:
    """A batch that both sides train. is_drawn: whether ids of its lookups are drawn at random."""

    keys: KeyBatch
    batch: Batch
    samples: Any
    """The same samples as the framework alone takes them."""
    is_drawn: bool = False


class Compared(Protocol):
    """The part of a program that a comparison of steps needs."""

    framework: str
    """Keras or PyTorch."""
    layout: Layout
    updates: Updates
    batch_size: int
    first_samples: int
    is_rounded: bool
    """True if the model computes with fewer digits than float32 has."""

    def initial_dense(self) -> F32:
        """Return the trained parameters as the user's initialisers made them: [dense_size]."""
        ...

    def initial_state(self) -> F32:
        """Return what is not trained, such as moving statistics: [state_size]."""
        ...

    def step(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Any:
        """Compute the gradients. rows: of each table, [n unique, dimension]. Raises ModelRefused for a loss that is not
        finite.
        """
        ...

    def trial(self) -> Trial:
        """Return a batch of the first samples. Raises DataError."""
        ...

    def named(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32) -> dict[str, F32]:
        """Return whole weights and states by what they are."""
        ...

    def plain(self, trial: Trial, start: Mapping[str, F32]) -> AbstractContextManager[Plain]:
        """Return the user's model with these weights and states, for its framework; afterwards it is as it was."""
        ...

    def keeping(self) -> AbstractContextManager[None]:
        """Return a block after which whatever steps change in this process is as it was."""
        ...


class OtherIds(Exception):
    """A layer looks up other ids than its batch was prepared with."""


def compare_steps(program: Compared) -> str:
    """Raise ModelRefused if Stretto would train a model otherwise than its framework; return what was not compared, ""
    if all was.
    """
    if program.is_rounded:
        return f"the model computes with fewer digits than float32: not compared with {program.framework} alone"
    if program.first_samples < 1:
        return "there is no sample yet: steps are not compared with those of the framework"
    try:
        trial = program.trial()
    except DataError as error:
        return f"the first samples cannot be read, so no step is compared with one of the framework: {error}"
    try:
        with program.keeping():
            [start, *ours] = _ours(program, trial)
    except StrettoError:
        raise
    except Exception as error:
        raise ModelRefused(f"a step on the first samples failed: {type(error).__name__}: {error}") from error
    try:
        [plain, largest] = _plain(program, trial, start.values)
        found = difference(start, ours, plain, largest)
        if not found:
            return ""
        [again, _] = _plain(program, trial, start.values)
    except OtherIds as error:
        if trial.is_drawn:
            return f"{error}, which are drawn at random: its steps are not compared with those of its framework"
        raise ModelRefused(
            f"{error}, when it is trained, than those of the batch, which are found as in a prediction; ids must not "
            "depend on `training`: change them in read"
        ) from None
    except StrettoError:
        raise
    except Exception as error:
        return (
            f"the model cannot be trained by {program.framework} alone ({type(error).__name__}: "
            f"{str(error).strip().partition(_LINE)[0]}), so its steps are not compared"
        )
    if difference(start, again, plain, largest):
        return (
            f"the model's own steps by {program.framework} alone differ from time to time, so those of Stretto are not "
            "compared with them: it draws at random beyond the seeds of its layers, or counts its calls; give what "
            "draws a seed to have them compared"
        )
    raise ModelRefused(
        f"one step of Stretto differs from one of {program.framework} alone on the first "
        f"samples: {found}; what the model does beside its loss and gradients, such as a constraint, a hook or an "
        "assignment, is not done by the parameter servers: compute it in the model's call, or leave it out"
    )


def _ours(program: Compared, trial: Trial) -> Generator[Stepped]:
    """Yield the values before the first step, then each step, as worker and parameter server make it."""
    layout, keys = program.layout, trial.keys
    tables = tuple(replace(each, weights="float32") for each in layout.tables)
    layout = replace(layout, tables=tables, rows=EVERY_KEY)  # this is the first sight of each key
    store = Store(layout, _STORE_BYTES_MAX)
    store.set_own(range(layout.columns), Own.MINE)
    store.seed(layout.split_dense(program.initial_dense()), program.initial_state())
    loss = float("nan")
    for number in range(STEPS + 1):
        pulled = store.pull([each.stored for each in keys.tables], np.arange(layout.slices))
        dense = layout.join_dense(pulled.slices)
        yield Stepped(loss, program.named(pulled.rows, keys, dense, pulled.state))
        if number == STEPS:
            return
        found = program.step(pulled.rows, keys, dense, pulled.state, trial.batch)
        loss = found.loss
        store.push(
            Push(
                shard=0,
                attempt=1,
                start=number * program.batch_size,
                stop=(number + 1) * program.batch_size,
                worker=0,
                claim=np.ones(layout.columns, np.bool_),
                keys=[each.stored for each in keys.tables],
                row_gradients=found.rows,
                slice_gradients=layout.split_dense(found.dense),
                state_delta=found.state_delta,
                row_squares=found.row_squares or [None] * len(found.rows),
                slice_squares=None if found.dense_squares is None else layout.split_dense(found.dense_squares),
            )
        )


def _plain(program: Compared, trial: Trial, start: Mapping[str, F32]) -> tuple[list[Stepped], dict[str, F32]]:
    with program.plain(trial, start) as plain:
        return [plain.step() for _ in range(STEPS)], plain.largest


def difference(
    start: Stepped, ours: Sequence[Stepped], plain: Sequence[Stepped], largest: Mapping[str, NDArray[Any]]
) -> str:
    """Return where the steps differ first by more than float32 does when sums have another order; "" if nowhere.

    largest: the sizes of the gradients. For each step a weight may differ by 1e-5 of the way that its variable went;
    besides, by its own rounding, and by what rounding of its gradient explains: an optimizer that divides by the
    gradient makes whole steps of noise.
    """
    noise = _NOISE * max((float(each.max(initial=0.0)) for each in largest.values()), default=0.0)
    for number, (mine, its) in enumerate(zip(ours, plain, strict=True), start=1):
        if abs(mine.loss - its.loss) > _TOLERANCE * max(1.0, abs(its.loss)):
            return f"the loss of step {number} is {mine.loss:.7g}, and {its.loss:.7g} there"
        reach = max((float(np.abs(its.values[n] - start.values[n]).max(initial=0.0)) for n in largest), default=0.0)
        for name, value in its.values.items():
            other, before = mine.values[name], start.values[name]
            if other.shape != value.shape:
                return f"{name} has the shape {other.shape}, and {value.shape} there"
            allowed = _TOLERANCE * np.maximum(1.0, np.abs(value))
            if name in largest:
                moved = np.minimum(np.maximum(np.abs(value - before), np.abs(other - before)), 2 * reach)
                is_used = bool(largest[name].any())  # else its gradient is 0 by the graph, and no rounding
                share = np.minimum(1.0, noise / np.maximum(largest[name], 1e-37)) * is_used
                farthest = min(1.0, float(moved.max(initial=0.0)))
                allowed = _ROUNDING * np.abs(value) + _TOLERANCE * number * farthest + _AMPLIFIED * share * moved
            allowed = np.where(np.isfinite(value), allowed, 0.0)
            apart = np.abs(np.subtract(other, value, out=np.zeros_like(value), where=other != value))  # inf is inf
            beyond = ~(apart <= allowed)
            if beyond.any():
                at = np.unravel_index(int(np.argmax(np.where(beyond, apart, -1))), value.shape)
                place = f"{[int(each) for each in at]}" if value.ndim else ""
                return f"{name}{place} is {other[at]:.7g} after step {number}, and {value[at]:.7g} there"
    return ""


# --- an update rule of Stretto's own ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slices:
    """The gradient of a table that is looked up: values [occurrences, dimension] of the rows at `places`."""

    values: F32
    places: NDArray[np.int64]
    rows: int

    def summed(self, values: F32) -> F32:
        """Return values of occurrences added up by row: [rows, dimension]."""
        total = np.zeros((self.rows, values.shape[1]), np.float32)
        np.add.at(total, self.places, values)
        return total


class Reference:
    """The update of an optimizer that the user named by Stretto's words, in NumPy, variable by variable."""

    def __init__(self, update: Update, batch_size: int, tables: Collection[str]) -> None:
        """Begin without slots. tables: names of values whose rows have slots of their own."""
        self._update = update
        self._tables = frozenset(tables)
        self._batch_size = batch_size
        self._slots: dict[str, F32] = {}
        self._steps = 0

    def apply(self, weights: Mapping[str, F32], gradients: Mapping[str, F32 | Slices]) -> dict[str, F32]:
        """Return the weights after a step."""
        sums, squares = summed(gradients, self._update.clipping)
        samples = self._steps * self._batch_size
        self._steps += 1
        found: dict[str, F32] = {}
        for name, weight in weights.items():
            is_table = name in self._tables
            rule = self._update.optimizer if is_table else self._update.optimizer.dense
            w = weight.reshape(weight.shape if is_table else (1, -1)).copy()
            if name not in self._slots:
                self._slots[name] = np.repeat(rule.first_slots(w.shape[1])[None], len(w), axis=0)
            rates = np.full((len(w), 1), rule.schedule.rate(samples), np.float32)
            g, q = sums[name].reshape(w.shape), squares[name].reshape(w.shape)
            rule.step(w, self._slots[name], g, q, rates, rule.hyperparameters())
            found[name] = w.reshape(weight.shape)
        return found


def summed(gradients: Mapping[str, F32 | Slices], limits: Clipping) -> tuple[dict[str, F32], dict[str, F32]]:
    """Return sums and squares of gradients within limits, as Keras has them: a global norm adds slices up."""
    values = {name: each.values if isinstance(each, Slices) else each for name, each in gradients.items()}
    clipped = dict(zip(values, limits.apply([*values.values()]), strict=True))
    sums: dict[str, F32] = {}
    squares: dict[str, F32] = {}
    for name, each in gradients.items():
        of = each.summed if isinstance(each, Slices) else np.asarray
        sums[name] = of(clipped[name])
        squares[name] = of(np.square(clipped[name])) if limits.global_norm is None else np.square(sums[name])
    return sums, squares

"""A model of a job, built in the framework that the user's code has imported: TensorFlow or PyTorch, never both."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import sys
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from stretto_parameters import RowPolicy
from stretto_parameters.optimizers import OPTIMIZERS, Optimizer
from stretto_wire.jobspec.spec import DatasetSpec, JobSpec, RuleSpec, RulesSpec

from .errors import ModelRefused
from .model.entry_point import Task, changes_of, state_of
from .model.program import FIRST_SAMPLES, Options, Program, ends_in_single, is_rows
from .model.start_weights import take_weights
from .optimizers import DENSE, ROWS

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# PyTorch's idle threads spin otherwise, on the cores that reading, pulls and pushes need: measured on two busy cores
# with Wide & Deep, two threads, a step takes 4 ms instead of 34
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_FRAMEWORKS = ("keras", "torch")
_SEEDS = 2**31 - 1


def options_of(job: JobSpec) -> Options:
    """Return the settings of a job that its model depends on."""
    model, data = job.model, job.dataset
    return Options(
        optimizer=_rules_of(model.optimizer),
        learning_rate=model.learning_rate,
        batch_size=data.batch_size,
        embedding_dim=model.embedding_dim,
        is_dimension_stated="embedding_dim" in model.model_fields_set,
        seed=data.seed,
        row_weights=model.row_weights,
        rows=RowPolicy(job.rows.admit, job.rows.expire_samples),
        restore_from=model.restore_from or "",
        ends_in_single=ends_in_single(
            [part.samples for part in data.partitions] if data.partitioned else [data.samples], data.batch_size
        ),
        **_first(data),
    )


def _rules_of(stated: str | RulesSpec) -> str | Mapping[str, object]:
    """Return update rules as a task gives them; a name has model.learning_rate."""
    if isinstance(stated, str):
        return stated
    return {DENSE: _rule_of(stated.dense), ROWS: _rule_of(stated.rows)}


def _rule_of(stated: str | RuleSpec) -> str | Optimizer:
    if isinstance(stated, str):
        return stated
    return stated.name if stated.learning_rate is None else OPTIMIZERS[stated.name](stated.learning_rate)


def _first(data: DatasetSpec) -> dict[str, Any]:
    """Return the samples that a model may be tried on: the first of the data, or of the first partition."""
    if not data.partitioned:
        return {"first_samples": min(FIRST_SAMPLES, data.samples)}
    for part in data.partitions:
        if part.samples:
            return {"first_samples": min(FIRST_SAMPLES, part.samples), "first_partition": part.name}
    return {"first_samples": 0}


def make_program(task: Task, options: Options) -> Program:
    """Build the user's model, and the program of the framework that it is written in. Raises ModelRefused."""
    before, state = _imported(), state_of(task)
    model, draws = _build(task, options.seed)
    if before != _imported():  # imported by build() itself, which drew initial values before the seed was set
        model, draws = _build(task, options.seed)
    changes = changes_of(state, task)
    if options.restore_from:
        plain = model.model if _is_explicit(model) else model
        if getattr(plain, "built", True):  # else its first batch makes its variables (keras/adapted.py)
            take_weights(plain, options.restore_from)
    program = _program(task, model, options, draws)
    program.set_by_build = changes
    return program


def _program(task: Task, model: Any, options: Options, draws: Any) -> Program:
    """Return the program of a built model. Raises ModelRefused."""
    keras, torch = (cast("Any", sys.modules.get(name)) for name in _FRAMEWORKS)
    if keras is not None and (isinstance(model, keras.Model) or _is_explicit(model)):
        return _keras_program(task, model, options)
    if torch is not None and isinstance(model, torch.nn.Module):
        return _torch_program(task, model, options, draws)
    if type(model).__module__.startswith("tf_keras."):
        raise ModelRefused(
            f"build() gave {type(model).__name__} of tf_keras, which is Keras 2; build it with `import keras`, Keras 3"
        )
    raise ModelRefused(f"build() gave {type(model).__name__}; expected a keras.Model of Keras 3 or a torch.nn.Module")


def _keras_program(task: Task, given: Any, options: Options) -> Program:
    """Return the program of a Keras model: with rows as an input, or adapted. Raises ModelRefused."""
    import keras

    from .keras.adapted import AdaptedKerasProgram
    from .keras.program import RowsProgram, input_names

    if keras.backend.backend() != "tensorflow":
        raise ModelRefused(f"KERAS_BACKEND = {keras.backend.backend()}: only 'tensorflow' can be trained; unset it")
    if _is_explicit(given):
        return AdaptedKerasProgram(task, given.model, options)
    is_known = bool(getattr(given, "inputs", None))  # functional, or Sequential with an Input
    if is_known and any(is_rows(name) for name in input_names(given)):
        return RowsProgram(task, given, options)
    return AdaptedKerasProgram(task, given, options)


def _torch_program(task: Task, model: Any, options: Options, draws: Any) -> Program:
    """Return the program of a PyTorch module: with rows as an argument, or adapted. Raises ModelRefused."""
    from .torch.adapted import AdaptedTorchProgram
    from .torch.program import TorchProgram

    if any(is_rows(name) for name in inspect.signature(model.forward).parameters):
        return TorchProgram(task, model, options)
    return AdaptedTorchProgram(task, model, options, draws)


def _is_explicit(model: Any) -> bool:
    """Return whether `build` gave what `stretto.adapt` returns, without importing Keras for its class."""
    return type(model).__name__ == "Explicit"


def _imported() -> list[str]:
    return [name for name in _FRAMEWORKS if name in sys.modules]


def _build(task: Task, seed: int) -> tuple[Any, Any]:
    """Return the user's model, and how PyTorch filled its tables (torch/tables.py: Draws), if it is imported."""
    random.seed(seed)
    np.random.seed(seed % _SEEDS)
    keras, torch = (cast("Any", sys.modules.get(name)) for name in _FRAMEWORKS)
    if keras is not None:
        keras.utils.set_random_seed(seed % _SEEDS)
    if torch is not None:
        torch.manual_seed(seed)
    draws: Any = contextlib.nullcontext()
    if torch is not None:
        from .torch.tables import Draws

        draws = Draws()
    try:
        with draws:
            return task.build(), draws
    except ModelRefused:
        raise
    except Exception as error:
        raise ModelRefused(f"build() failed: {type(error).__name__}: {error}") from error

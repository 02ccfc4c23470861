"""The user's object, made from the specification's ``module:name``. A failure here is a failure of the user's code."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, ModelRefused
from ..readers import Batch
from .keys import field_keys

if TYPE_CHECKING:
    from stretto_wire.jobspec.spec import ModelSpec


class Task(Protocol):
    """The object that a user writes.

    ``keys`` may be left out: then ``batch["categorical"]`` [n, fields] is offset by field. Optional attributes:
    ``optimizer`` (a name, an unused optimizer of Keras, PyTorch or stretto.optimizers, a mapping of these by table,
    ``rows`` and ``dense``; of PyTorch also a list, or a function of the model that returns any of these), ``clipping``
    (stretto.optimizers.Clipping), ``loss(label, output)`` (a scalar or one value a sample; modules and functions of
    torch.nn are called as PyTorch does, with the output first), and for PyTorch ``tables`` (the floats per row of each
    argument ``rows_…`` of ``forward``).
    """

    def build(self) -> Any:
        """Return the model: a Keras 3 one or a torch.nn.Module with embedding layers of its own, or with an input named
        ``rows`` of shape (fields, dimension), which is an argument of ``forward`` in a module. It may be called twice.
        """
        ...

    def keys(self, batch: Batch) -> NDArray[np.int64]:
        """Return the ids of the embedding rows of each sample: [n, fields]; a dict by input where there are several."""
        ...

    def read(self, start: int, length: int) -> Batch:
        """Return samples [start, start + length): arrays by name, ``label`` and the model's other inputs among them.

        For a model with embedding layers of its own, (inputs, labels) or (inputs, labels, weights) are fine, too.

        If the job's dataset has partitions, it is called as ``read(start, length, partition)``.
        """
        ...


def load(spec: ModelSpec) -> Task:
    """Import the entry and call it with its arguments. Raises ModelRefused, caused by the user's own error."""
    module_name, _, name = spec.entry.partition(":")
    try:
        entry = getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise ModelRefused(
            f"model.entry = {spec.entry}: there is no module {error.name!r}; {_remedy(spec, str(error.name))}"
        ) from error
    except AttributeError as error:
        raise ModelRefused(f"model.entry = {spec.entry}: module {module_name} has no {name!r} ({error})") from error
    except Exception as error:
        raise ModelRefused(f"model.entry = {spec.entry} failed on import: {type(error).__name__}: {error}") from error
    return instantiate(entry, spec.arguments, spec.embedding_dim)


def _remedy(spec: ModelSpec, missing: str) -> str:
    """Return what to change so that a ``missing`` module is found."""
    if missing.partition(".")[0] != spec.entry.partition(":")[0].partition(".")[0]:
        return "put a module of the job beside the entry's, a package into model.requirements or the job's image"
    if spec.path and not os.path.isdir(spec.path):
        return f"the folder model.path = {spec.path} does not exist where the pods run; set it to the one that holds it"
    return "set model.path to the folder that holds it"


def instantiate(entry: Any, arguments: Mapping[str, Any], embedding_dim: int) -> Task:
    """Call a class or factory with ``arguments``, and ``embedding_dim`` if it takes that; return an object as is."""
    if inspect.isclass(entry) or inspect.isfunction(entry):
        values = dict(arguments)
        factory = cast("Callable[..., Any]", entry)
        parameters = inspect.signature(factory).parameters
        if "embedding_dim" in parameters and "embedding_dim" not in values:
            values["embedding_dim"] = embedding_dim
        unknown = [name for name in values if name not in parameters]
        if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            raise ModelRefused(
                f"model.arguments.{unknown[0]} is not an argument of {entry.__name__}; it has {[*parameters]}"
            )
        try:
            task = factory(**values)
        except Exception as error:
            raise ModelRefused(f"{entry.__name__}(…) failed: {type(error).__name__}: {error}") from error
    elif arguments:
        raise ModelRefused(f"model.arguments = {dict(arguments)} cannot be given to an object; name a class instead")
    else:
        task = entry
    for method in ("build", "read"):
        if not callable(getattr(task, method, None)):
            raise ModelRefused(
                f"{type(task).__name__} has no method {method}(); a model needs build() and read(start, length)"
            )
    return task


def state_of(task: Task) -> dict[str, tuple[Any, int]]:
    """Return all that a task's ``build`` may leave for its ``read``, by name: attributes of the object, of objects that
    it has and of its classes, names of their module; each with the number of its items, if it is a container.
    """
    kind, own = type(task), dict(getattr(task, "__dict__", {}))
    places = {"self": own, **{each.__name__: vars(each) for each in kind.__mro__ if each is not object}}
    places[kind.__module__] = getattr(inspect.getmodule(kind), "__dict__", {})
    for name, value in own.items():
        if hasattr(value, "__dict__") and not (inspect.isclass(value) or inspect.ismodule(value)):
            places[f"self.{name}"] = vars(value)
    return {
        f"{place}.{name}": (value, len(value) if isinstance(value, (dict, list, set)) else 0)
        for place, names in places.items()
        for name, value in names.items()
        if not name.startswith("__")
    }


def changes_of(before: Mapping[str, tuple[Any, int]], task: Task) -> tuple[str, ...]:
    """Return the names in the state of a task whose value is another object than before, or has more or fewer items."""
    changed = [
        name
        for name, (value, items) in state_of(task).items()
        if name not in before or before[name][0] is not value or before[name][1] != items
    ]
    return tuple(name for name in changed if name.rpartition(".")[0] not in changed)  # not what a new object has


def read_of(task: Task, start: int, length: int, partition: str = "") -> Batch:
    """Call the user's ``read``, with the partition if the dataset has partitions. Raises DataError."""
    read = cast("Callable[..., Batch]", task.read)
    try:
        return read(start, length, partition) if partition else read(start, length)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{call_of(start, length, partition)} failed: {type(error).__name__}: {error}") from error


def call_of(start: int, length: int, partition: str) -> str:
    """Return how errors name a call of the user's ``read``."""
    return f"read({start}, {length}, {partition!r})" if partition else f"read({start}, {length})"


def check_reads_partitions(task: Task) -> None:
    """Raise ModelRefused if ``read`` takes no partition."""
    try:
        inspect.signature(task.read).bind(0, 1, "partition")
    except TypeError as error:
        raise ModelRefused(
            f"{type(task).__name__}.read cannot be called as read(start, length, partition): {error}; "
            "samples of a dataset with partitions are numbered within each of them"
        ) from error


def keys_of(task: Task, batch: Batch) -> NDArray[np.int64] | dict[str, NDArray[np.int64]]:
    """Call the user's ``keys``, or the default; a model of several tables gets ids by the name of their input."""
    own = getattr(task, "keys", None)
    return own(batch) if own is not None else field_keys(batch["categorical"])

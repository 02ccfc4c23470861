"""The form of the batches of a PyTorch module: its inputs by name, in order or as one, and the arguments of forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from numpy.typing import NDArray

from ..errors import DataError
from ..model.entry_point import Task
from ..model.example_batch import Leaf, Parts, array_of, check_finite, fill, leaves_of, structure_of
from ..model.form import DataForm, leaf_like, members
from ..model.program import Options
from .program import tensor_of


class TorchForm(DataForm):
    """The form of a module: inputs by the names of forward's parameters, in their order, or as the single one."""

    _how: Literal["by name", "in order", "as one"]

    def __init__(self, task: Task, model: Any, options: Options) -> None:
        """Read the first samples. Raises ModelRefused, DataError."""
        self._parameters = inspect.signature(model.forward).parameters
        super().__init__(task, options, takes_floats=getattr(task, "loss", None) is None)

    def _learned(self, inputs: Any, where: str) -> list[Leaf]:
        self._how = self._way(inputs, where)
        taken = self._taken(inputs)
        self._structure = structure_of(taken)
        leaves = [leaf_like(path, value, where) for path, value in leaves_of(taken)]
        text = next((leaf for leaf in leaves if leaf.dtype == "string"), None)
        if text is not None:
            raise DataError(
                f"{where}: {text.name or 'the input'!r} is text, and a module takes numbers: map it in read, as by "
                "stretto.hash_strings(texts) % rows"
            )
        return [replace(leaf, shape=(None,) * len(leaf.shape)) for leaf in leaves]  # batches may be padded differently

    def _way(self, inputs: Any, where: str) -> Literal["by name", "in order", "as one"]:
        """Return how forward takes these inputs. Raises DataError where it cannot."""
        kinds = {name: parameter.kind for name, parameter in self._parameters.items()}
        present = set(kinds.values())
        ordered = [n for n, kind in kinds.items() if kind.name in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
        needed = [
            name
            for name, parameter in self._parameters.items()
            if parameter.default is parameter.empty and not parameter.kind.name.startswith("VAR")
        ]
        if isinstance(inputs, Mapping):
            given = cast("Mapping[str, Any]", inputs)
            if set(needed) <= set(given) and (set(kinds) & set(given) or inspect.Parameter.VAR_KEYWORD in present):
                return "by name"
            if len(needed) == 1 and needed[0] in ordered:
                return "as one"
            missing = [name for name in needed if name not in given]
            raise DataError(
                f"{where} gave {[*given]}, forward takes {[*kinds]}, of which {missing} are missing; name them alike, "
                "or return (inputs, labels) with a tuple of inputs in the order of forward"
            )
        if isinstance(inputs, (tuple, list)) and len(leaves_of(inputs)) >= len(cast("Sequence[Any]", inputs)):
            count = len(cast("Sequence[Any]", inputs))
            fits = count <= len(ordered) or inspect.Parameter.VAR_POSITIONAL in present
            if fits and set(needed) <= set(ordered[:count]):
                return "in order"
        if set(needed) <= set(ordered[:1]):
            return "as one"
        count = len(cast("Sequence[Any]", inputs)) if isinstance(inputs, (tuple, list)) else "one"
        raise DataError(f"{where} gave {count} inputs, forward takes {[*kinds]}; return a dict by these names")

    def _taken(self, inputs: Any) -> Any:
        """Return the inputs that forward has a parameter for."""
        is_open = any(each.kind is each.VAR_KEYWORD for each in self._parameters.values())
        if self._how != "by name" or is_open:
            return inputs
        return {name: value for name, value in inputs.items() if name in self._parameters}

    def _inputs_of(self, parts: Parts, where: str, start: int, length: int) -> list[NDArray[Any]]:
        if isinstance(parts.inputs, Mapping) != (self._how == "by name") and self._how != "as one":
            raise DataError(f"{where} gave its inputs in another form than the first samples; keep to one")
        given = members(self._taken(parts.inputs), self.inputs, where)
        arrays: list[NDArray[Any]] = []
        for value, leaf in zip(given, self.inputs, strict=True):
            array = array_of(value.detach() if isinstance(value, torch.Tensor) else value, leaf, where, start)
            check_finite(array, leaf.name or "the input", start)
            arrays.append(tensor_of(array).numpy())  # in the memory in which both calls of the module find it
        return arrays

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return how forward is called."""
        filled = fill(self._structure, {leaf.path: each for leaf, each in zip(self.inputs, tensors, strict=True)})
        if self._how == "by name":
            return (), filled
        return (tuple(filled), {}) if self._how == "in order" else ((filled,), {})

"""Every private name of Keras that Stretto uses, each behind a function that says what it is used for.

A release of Keras may rename them without notice. The trainer is known to work with the release `KNOWN`; if a name is
gone, whatever needs it is refused with that release as the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import keras

from ..errors import ModelRefused

KNOWN = "3.15.1"
"""The release of Keras that the tests run with (constraints.txt)."""


def _of(owner: Any, name: str) -> Any:
    """Return an attribute of an object of Keras. Raises ModelRefused where this release has none of that name."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise ModelRefused(
            f"Keras {keras.__version__} has no {type(owner).__name__}.{name}, which Stretto uses; install "
            f"keras=={KNOWN}"
        ) from None


# --- models and layers --------------------------------------------------------------------------------------


def layers_of(model: Any) -> list[Any]:
    """Return a model and all of its layers, those within layers too."""
    return list(_of(model, "_flatten_layers")())


def takes_training(model: Any) -> bool:
    """Return whether the call of a model has an argument `training`."""
    return bool(_of(model, "_call_has_training_arg"))


def table_of(layer: Any) -> Any:
    """Return the variable of an embedding layer; its property `embeddings` is overridden by a lookup."""
    return _of(layer, "_embeddings")


def replace_value(variable: Any, value: Any) -> None:
    """Give a variable another value, whose shape may be another, too."""
    _of(variable, "_value")
    variable._value = value


def pass_on(error: Exception) -> None:
    """Let Keras pass an error on as it is, without the arguments of the call in its text."""
    error._keras_call_info_injected = True  # pyrefly: ignore[missing-attribute]


def seeds_of(model: Any) -> set[int]:
    """Return the ids of the variables that are states of random generators."""
    return {id(each.state) for layer in layers_of(model) for each in getattr(layer, "_seed_generators", ())}


# --- losses and metrics -------------------------------------------------------------------------------------


def compiled_loss(model: Any) -> Any:
    """Return the loss that a model was compiled with, as a function of labels, outputs and weights; None without."""
    return _of(model, "_compile_loss")


def total_loss(model: Any, inputs: Any, labels: Any, output: Any, weights: Any) -> Any:
    """Return the loss of a step with its penalties, as `fit` computes it: an override may have no `training`."""
    compute = _of(model, "_compute_loss")
    return compute(x=inputs, y=labels, y_pred=output, sample_weight=weights, training=True)


def losses_by_output(compiled: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path of each output that a compiled loss is of, and the loss there; nothing before its first call."""
    for path, loss, _, _ in _of(compiled, "_flat_losses") or ():
        yield cast("tuple[Any, ...]", path), loss


def options_of(loss: Any) -> dict[str, Any]:
    """Return the arguments with which a loss calls its function; none of a loss that a user wrote."""
    is_of_keras = type(loss).__module__.startswith("keras.")
    return cast("dict[str, Any]", _of(loss, "_fn_kwargs")) if is_of_keras else {}


def adds_losses(layer: Any) -> bool:
    """Return whether the last call of a layer has added a loss."""
    return bool(_of(layer, "_get_own_losses")())


def compiled_metrics(model: Any) -> Any:
    """Return the metrics that a model was compiled with, as one; None without."""
    return _of(model, "_compile_metrics")


def means_of_loss(model: Any) -> list[Any]:
    """Return the metrics in which Keras keeps means of the loss."""
    compiled = compiled_loss(model)
    found = [_of(model, "_loss_tracker"), *(compiled.metrics if compiled is not None else ())]
    return [each for each in found if each is not None]


# --- optimizers ---------------------------------------------------------------------------------------------


def excludes_from_decay(optimizer: Any) -> bool:
    """Return whether `exclude_from_weight_decay` of an optimizer was called; before that it has no such attribute."""
    names = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    return any(getattr(optimizer, name, None) for name in names)


# --- graphs of functional models ----------------------------------------------------------------------------


def nodes_of(model: Any) -> list[Any]:
    """Return the calls of layers and operations of a functional model, in the order in which it computes them."""
    by_depth: dict[int, list[Any]] = _of(model, "_nodes_by_depth")
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]


def computed(node: Any, values: dict[int, Any], taken: dict[int, Any]) -> None:
    """Compute a call of a model in training. values, taken: tensors that it makes and takes, by the ids of the symbolic
    ones that they stand for."""
    args, kwargs = node.arguments.fill_in(taken)
    if "training" in getattr(node.operation, "_call_context_args", ()):
        kwargs["training"] = True
    outputs = node.operation(*args, **kwargs)
    values.update((id(symbol), each) for symbol, each in zip(node.outputs, keras.tree.flatten(outputs), strict=True))


def has_mask(tensor: Any) -> bool:
    """Return whether a symbolic tensor has a mask, which later layers take beside it."""
    return getattr(tensor, "_keras_mask", None) is not None


def keep_mask(tensor: Any, made: Any) -> None:
    """Give a tensor the mask of the one that it was made of."""
    if has_mask(tensor):
        made._keras_mask = tensor._keras_mask

"""The loss of a PyTorch module with any outputs: the task's, or binary cross-entropy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from ..errors import ModelRefused
from ..model.entry_point import Task
from ..model.example_batch import LABEL
from ..readers import Batch
from .private import leaves_of

_PASSED_THROUGH = ("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Select", "Alias", "Clone", "Slice")
"""Operations that change no value of an output, as the classes of their derivatives begin."""


def ends_in_sigmoid(output: Any) -> bool:
    """Return whether a tensor is the result of a sigmoid, by how its derivative would be computed."""
    function = output.grad_fn
    while function is not None and type(function).__name__.startswith(_PASSED_THROUGH):
        function = function.next_functions[0][0]
    return function is not None and type(function).__name__.startswith("SigmoidBackward")


def own_loss(task: Task, device: Any) -> Callable[[Any, Any], Any] | None:
    """Return the task's loss as a function of label and output on a device; None: it has none. Raises ModelRefused."""
    given = getattr(task, "loss", None)
    if given is None:
        return None
    if not callable(given):
        raise ModelRefused(
            f"loss = {given!r}: give a function loss(label, output), or a module such as a loss of torch.nn"
        )
    if isinstance(given, torch.nn.Module):
        module = cast("torch.nn.Module", given)
        if trained := [name for name, each in module.named_parameters() if each.requires_grad]:
            raise ModelRefused(
                f"loss {type(given).__name__} has parameters of its own, {', '.join(trained)}, which nobody would "
                "train; make them the model's, and let forward return them"
            )
        module.to(device)
    if _is_of_pytorch(given):
        return lambda label, output: given(output, label)
    return cast("Callable[[Any, Any], Any]", given)


def _is_of_pytorch(loss: Any) -> bool:
    """Return whether a loss takes the output first, as modules and `torch.nn.functional` do, also with some arguments
    given in advance by `functools.partial`."""
    while isinstance(loss, functools.partial):
        loss = cast("functools.partial[Any]", loss).func
    return isinstance(loss, torch.nn.Module) or str(getattr(loss, "__module__", "")).startswith("torch.nn")


class Objective:
    """The loss as a function of labels, outputs and weights of samples."""

    def __init__(self, task: Task, outputs: Sequence[Any], targets: Batch, has_labels: bool, device: Any) -> None:
        """Choose the loss. Raises ModelRefused where nothing says what it is.

        outputs: the tensors that the module gave for the first samples, with their derivatives. targets: labels and
        weights of the first samples. device: where losses are computed.
        """
        self._own = own_loss(task, device)
        self.is_default = self._own is None
        if self.is_default and not has_labels:
            raise ModelRefused("read gave no labels: return (inputs, labels), or give the task loss(label, output)")
        samples = len(targets[LABEL]) if LABEL in targets else 0
        shapes = [tuple(each.shape) for each in outputs]
        is_single = len(shapes) == 1 and shapes[0] in ((samples,), (samples, 1))
        if self.is_default and not is_single:
            raise ModelRefused(
                f"forward gave {', '.join(str(list(shape)) for shape in shapes)} for {samples} samples, and the task "
                "has no loss: give one logit a sample, [n] or [n, 1], or the task loss(label, output)"
            )
        self.is_logit = not (is_single and ends_in_sigmoid(outputs[0]))
        labels = [value for name, value in targets.items() if name.startswith(LABEL)]
        has_two_values = len(labels) == 1 and bool(((labels[0] == 0) | (labels[0] == 1)).all())
        self.is_binary = self.is_default or (is_single and has_two_values)

    def loss(self, labels: Any, output: Any, weights: Any) -> Any:
        """Return the mean loss: a scalar. Weights multiply the losses of samples; the mean is over all samples."""
        labels = _like(labels, output)
        if self._own is None:
            output = leaves_of(output)[0]
            labels = labels.reshape(output.shape)
            function = torch.nn.functional
            entropy = function.binary_cross_entropy_with_logits if self.is_logit else function.binary_cross_entropy
            return entropy(output, labels, None if weights is None else _only(weights).reshape(output.shape))
        value = torch.as_tensor(self._own(labels, output))
        if weights is None:
            return value.mean()
        if not value.dim():
            raise ModelRefused(
                "the task's loss is one number, and samples have weights: return one a sample (reduction='none')"
            )
        weight = _only(weights).reshape(-1)
        return (value.reshape(len(weight), -1).mean(dim=1) * weight).mean()


def _only(weights: Any) -> Any:
    return leaves_of(weights)[0]


def _like(labels: Any, output: Any) -> Any:
    """Return single labels in the shape of a single output with as many values, as float32; others as they are."""
    if isinstance(labels, torch.Tensor) and isinstance(output, torch.Tensor) and labels.numel() == output.numel():
        return labels.to(torch.float32).reshape(output.shape)
    return labels

"""Every private name of PyTorch that Stretto uses, each behind a function or class that says what it is used for.

A release of PyTorch may rename them without notice. The trainer is known to work from the release `KNOWN` on; if a name
is gone, this module is refused with that release as the remedy.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ModelRefused

KNOWN = "2.6"
"""The oldest release of PyTorch that the extra `torch` of the package takes (pyproject.toml)."""


def _of(path: str) -> Any:
    """Return what a dotted name within `torch` stands for. Raises ModelRefused where this release has none of it."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise _gone(f"torch.{path}")
    return found


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise _gone(f"{type(owner).__name__}.{name}") from None


def _gone(name: str) -> ModelRefused:
    return ModelRefused(
        f"PyTorch {torch.__version__} has no {name}, which Stretto uses; install a release that has it, as {KNOWN} has"
    )


DispatchMode: Any = _of("utils._python_dispatch.TorchDispatchMode")
"""A `with` block whose `__torch_dispatch__` sees each operation within it."""
without_subclasses: Any = _of("_C.DisableTorchFunctionSubclass")
"""A `with` block in which tensors of classes of their own are plain ones."""
leaves_of: Any = _of("utils._pytree.tree_leaves")
"""Return the values of a nest of tuples, lists and dicts."""
leaves_and_structure: Any = _of("utils._pytree.tree_flatten")
"""Return the values of a nest, and its structure."""
nested: Any = _of("utils._pytree.tree_unflatten")
"""Return values in the structure that `leaves_and_structure` gave."""
as_class: Any = _of("Tensor._make_subclass")
"""Return a tensor of a class, with the memory of another tensor."""


def was_changed(tensor: Any) -> bool:
    """Return whether a tensor was changed in place since it was made."""
    return _attribute(tensor, "_version") > 0


def has_hooks(parameter: Any) -> bool:
    """Return whether functions are called with the gradient of a parameter."""
    return bool(_attribute(parameter, "_backward_hooks") or _attribute(parameter, "_post_accumulate_grad_hooks"))


def has_step_hooks(optimizer: Any) -> bool:
    """Return whether functions are called before, after or in the place of the steps of an optimizer."""
    hooks = any(_attribute(optimizer, f"_optimizer_step_{when}_hooks") for when in ("pre", "post"))
    return hooks or "step" in vars(optimizer)


def own_parameters(module: Any) -> dict[str, Any]:
    """Return the parameters of a module without its submodules, by name, to read or replace; None for an unset one."""
    return _attribute(module, "_parameters")


def own_buffers(module: Any) -> dict[str, Any]:
    """Return the buffers of a module without its submodules, by name, to read and to replace; None for an unset one."""
    return _attribute(module, "_buffers")

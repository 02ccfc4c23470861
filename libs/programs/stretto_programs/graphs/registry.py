"""Operations that TensorFlow itself calls stateless."""

from __future__ import annotations

import functools
from typing import Any

_HANDLES = frozenset({"resource", "variant"})


def is_stateless(operation: Any) -> bool:
    """Return whether TensorFlow's registry calls an operation stateless, and it has no handle and runs no function."""
    tensors = (*operation.inputs, *operation.outputs)
    return _is_stateless(operation.type) and not any(each.dtype.base_dtype.name in _HANDLES for each in tensors)


@functools.cache
def _is_stateless(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    found: Any = op_def_registry.get(op)
    if found is None or found.is_stateful or op.startswith(("_", "Xla", "TPU", "Tpu", "DTensor")):
        return False
    takes_variables = any(each.is_ref for each in (*found.input_arg, *found.output_arg))
    return not takes_variables and not any(each.type in ("func", "list(func)") for each in found.attr)

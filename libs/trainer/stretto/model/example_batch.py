"""The data that a user has, as arrays: what Keras' ``fit`` takes, or a dict with ``label`` and ``weight``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

LABEL, WEIGHT = "label", "weight"
_GENERATED = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?")
"""Names that Keras gives to inputs without one."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a batch, each nested as the user has it. labels: None where the model adds its loss in its call;
    weights: of the samples, or None."""

    inputs: Any
    labels: Any = None
    weights: Any = None


def parts_of(given: Any, where: str) -> Parts:
    """Tell inputs, labels and weights of a batch apart. Raises DataError."""
    if isinstance(given, Mapping):
        named = cast("Mapping[str, Any]", given)
        if LABEL in named:
            inputs = {name: value for name, value in named.items() if name not in (LABEL, WEIGHT)}
            return Parts(inputs, named[LABEL], named.get(WEIGHT))
    elif isinstance(given, (tuple, list)) and len(cast("Sequence[Any]", given)) in (1, 2, 3):
        return Parts(*cast("Sequence[Any]", given))
    told = sorted(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else type(given).__name__
    raise DataError(
        f"{where} gave {told}; expected a dict of arrays with {LABEL!r} among them, or (inputs,), "
        "(inputs, labels) or (inputs, labels, weights) as model.fit takes them"
    )


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array of every batch. dtype: a name of TensorFlow; shape: without the samples, None for any length."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int | None, ...]


def leaves_of(nested: Any, prefix: Path = ()) -> list[tuple[Path, Any]]:
    """Return the arrays of a structure with their paths; dicts in the order of their names, as Keras flattens them."""
    if isinstance(nested, Mapping):
        named = cast("Mapping[str, Any]", nested)
        return [each for name in sorted(named) for each in leaves_of(named[name], (*prefix, name))]
    if isinstance(nested, (tuple, list)) and any(_is_array(each) for each in cast("Sequence[Any]", nested)):
        members = cast("Sequence[Any]", nested)
        return [each for i, member in enumerate(members) for each in leaves_of(member, (*prefix, i))]
    return [] if nested is None else [(prefix, nested)]


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") or isinstance(value, Mapping)


def structure_of(nested: Any) -> Any:
    """Return the structure of some data with the path of each array in its place."""

    def build(value: Any, prefix: Path) -> Any:
        if isinstance(value, Mapping):
            named = cast("Mapping[str, Any]", value)
            return {name: build(named[name], (*prefix, name)) for name in named}
        if isinstance(value, (tuple, list)) and any(_is_array(each) for each in cast("Sequence[Any]", value)):
            members = [build(each, (*prefix, i)) for i, each in enumerate(cast("Sequence[Any]", value))]
            return tuple(members) if isinstance(value, tuple) else members
        return None if value is None else _Place(prefix)

    return build(nested, ())


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path


def fill(structure: Any, values: Mapping[Path, Any]) -> Any:
    """Put values into a structure of `structure_of`."""
    if isinstance(structure, _Place):
        return values[structure.path]
    if isinstance(structure, dict):
        return {name: fill(each, values) for name, each in cast("dict[str, Any]", structure).items()}
    if isinstance(structure, (tuple, list)):
        members = [fill(each, values) for each in cast("Sequence[Any]", structure)]
        return tuple(members) if isinstance(structure, tuple) else members
    return structure


def named_inputs(inputs: Any, names: Sequence[str], where: str) -> list[Any]:
    """Return the arrays for the named inputs of a model, in their order. Raises DataError."""
    if isinstance(inputs, Mapping):
        given = cast("Mapping[str, Any]", inputs)
        if set(names) <= set(given):
            return [given[name] for name in names]
        if len(given) == len(names) and all(_GENERATED.fullmatch(name) for name in names):
            return list(given.values())
        missing = [name for name in names if name not in given]
        raise DataError(
            f"{where} gave {[*given]}, the model has the inputs {[*names]}: {missing[0]!r} is missing; name them "
            "alike, or return (inputs, labels) with the inputs in the model's order"
        )
    if isinstance(inputs, (tuple, list)):
        members = list(cast("Sequence[Any]", inputs))
        if len(members) == len(names) and (len(names) > 1 or _is_array(members[0])):
            return members
    if len(names) == 1:
        return [inputs]
    told = len(cast("Sequence[Any]", inputs)) if isinstance(inputs, (tuple, list)) else "one"
    raise DataError(f"{where} gave {told} inputs, the model has {len(names)}: {[*names]}")


class _Uneven(Exception):
    """Samples that make no array. row: the number in the batch of the first such sample."""

    def __init__(self, row: int, told: str) -> None:
        super().__init__(told)
        self.row = row


def array_of(value: Any, leaf: Leaf | None, where: str, start: int = 0) -> NDArray[Any]:
    """Return a dense array: ragged and sparse values are padded with 0 (or "") to the longest, or the leaf's length.

    leaf: the type and shape to convert to; None: as it is, numbers with a fraction as float32. start: the number of
    the first sample. Raises DataError, also for a number that the leaf's type does not have.
    """
    if leaf is not None and isinstance(value, np.ndarray) and value.dtype is _type(leaf.dtype) and value.ndim:
        return _fitted(cast("NDArray[Any]", value), leaf, where)  # the usual case, without the rest of the questions
    try:
        array = _dense(value, leaf)
    except _Uneven as error:
        name = leaf.name if leaf is not None and leaf.name else "an input, a label or a weight"
        raise DataError(
            f"sample {start + error.row}: {name!r} is {error}; return lists of numbers or texts, or arrays whose other "
            "dimensions than the first are the same in all samples"
        ) from error
    if array.dtype.kind in "OSU":
        array = _strings(array, where)
    elif leaf is not None and leaf.dtype == "string":
        array = array.astype(str).astype(object)
    if leaf is None:
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    array = _fitted(array, leaf, where)
    if leaf.dtype == "string":
        return array
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: {leaf.name!r} has type {_kind(array)}, the model wants {leaf.dtype}")
    return _converted(array, leaf, start)


def _converted(array: NDArray[Any], leaf: Leaf, start: int) -> NDArray[Any]:
    """Return the numbers in the leaf's type. A number with a fraction is refused where the type is of whole numbers."""
    to = _type(leaf.dtype)
    if to is None or to.kind not in "biu" or np.can_cast(array.dtype, to, "safe"):
        return array.astype(leaf.dtype, copy=False)
    with np.errstate(invalid="ignore"):
        converted = array.astype(to)
    changed = converted != array
    if changed.any():
        place = tuple(np.argwhere(changed)[0])
        raise DataError(
            f"sample {start + int(place[0])}: {leaf.name!r} has {array[place]}, which is no {to}, the type of the "
            "model's input or of the first samples; return floats from the first sample on, or correct the value"
        )
    return converted


@lru_cache
def _type(name: str) -> Any:
    return None if name in ("string", "bfloat16") else np.dtype(name)


def _dense(value: Any, leaf: Leaf | None) -> NDArray[Any]:
    if hasattr(value, "to_tensor"):  # tf.RaggedTensor
        value = value.to_tensor()
    elif hasattr(value, "dense_shape"):  # tf.SparseTensor
        import tensorflow as tf

        value = tf.sparse.to_dense(tf.sparse.reorder(value))
    elif hasattr(value, "toarray"):  # scipy.sparse
        value = value.toarray()
    elif hasattr(value, "to_numpy"):  # pandas, pyarrow
        is_series = type(value).__module__.startswith("pandas.") and value.ndim == 1
        value = value.to_numpy()
        if is_series:
            value = value.reshape(-1, 1)  # as model.fit takes it
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, (list, tuple)):
        members = cast("Sequence[Any]", value)
        if members and isinstance(members[0], (list, tuple, np.ndarray)):
            return _padded(members, leaf)
        if members and isinstance(members[0], (str, bytes)):
            return np.asarray(members, object)
        odd = next((n for n, each in enumerate(members) if isinstance(each, (list, tuple))), None)
        if odd is not None:
            raise _Uneven(odd, "a list, where the first one is a single value")
        return np.asarray(members)
    array = np.asarray(value)
    if array.dtype == object and array.ndim == 1 and any(isinstance(of, (list, tuple, np.ndarray)) for of in array):
        return _padded(array.tolist(), leaf)
    return array


def _padded(rows: Sequence[Any], leaf: Leaf | None) -> NDArray[Any]:
    arrays = [_row(row, number) for number, row in enumerate(rows)]
    longest = max((len(each) for each in arrays), default=0)
    if leaf is not None and len(leaf.shape) == 1 and leaf.shape[0] is not None:
        longest = max(longest, leaf.shape[0])
    filled = [each for each in arrays if len(each)] or [np.zeros(0, np.int64)]
    odd = next((n for n, each in enumerate(arrays) if len(each) and each.shape[1:] != filled[0].shape[1:]), None)
    if odd is not None:
        raise _Uneven(odd, f"of shape {arrays[odd].shape}, where the first one has {filled[0].shape}")
    is_text = any(each.dtype.kind in "OSU" for each in filled)
    kind = np.dtype(object) if is_text else np.result_type(*{each.dtype for each in filled})
    out = np.full((len(arrays), longest, *filled[0].shape[1:]), "" if is_text else 0, kind)
    for to, each in zip(out, arrays, strict=True):
        if len(each):
            to[: len(each)] = each
    return out


def _row(row: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray([] if row is None else row)
    except ValueError as error:
        raise _Uneven(number, "a list of lists of several lengths") from error
    if not array.ndim:
        raise _Uneven(number, "a single value, where the first one is a list")
    return array


def _strings(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Return texts as objects, a missing one as ""; numbers that are objects as numbers."""
    flat = array.astype(object).reshape(-1)
    if all(isinstance(each, (int, float, np.number, bool)) for each in flat):
        return np.asarray(flat.tolist()).reshape(array.shape)
    texts = np.empty(len(flat), object)
    for i, each in enumerate(flat):
        if each is None or each != each:
            texts[i] = ""
        elif isinstance(each, (str, bytes)):
            texts[i] = each
        else:
            raise DataError(f"{where}: {each!r} of type {type(each).__name__} is neither text nor a number")
    return texts.reshape(array.shape)


def _fitted(array: NDArray[Any], leaf: Leaf, where: str) -> NDArray[Any]:
    """Return the array in the leaf's rank; as in Keras, a last dimension of 1 may be missing or too many."""
    rank = len(leaf.shape) + 1
    if array.shape[1:] == leaf.shape:
        return array
    if array.ndim == rank - 1 and leaf.shape[-1] in (1, None):
        array = array[..., None]
    elif array.ndim == rank + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim == rank:
        lengths = zip(array.shape[1:], leaf.shape, strict=True)
        if all(wanted in (None, found) for found, wanted in lengths):
            return array
    raise DataError(f"{where}: {leaf.name!r} has shape {array.shape}, the model wants {(None, *leaf.shape)}")


def _kind(array: NDArray[Any]) -> str:
    return "text" if array.dtype == object else str(array.dtype)


def check_samples(array: NDArray[Any], name: str, where: str, start: int, length: int) -> None:
    """Raise DataError for an array that has another number of samples, or a number that is not finite."""
    if array.shape[:1] != (length,):
        raise DataError(f"{where}: {name!r} has shape {array.shape}, expected {length} samples")
    check_finite(array, name, start)


def check_finite(array: NDArray[Any], name: str, start: int) -> None:
    """Raise DataError for a number that is not finite. start: the number of the first sample."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
        raise DataError(f"sample {start + row}: {name!r} is not finite")

"""The identity of a data set: by it another run of the program finds the same data set again.

An identity has operations, seeds, sizes of batches and buffers, and names of files: all that decides which elements
come when. It has neither the values of elements nor their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from ..graphs.shuffles import all_of, shuffles_of
from ..partition.effects import Effect, effect_of
from ..partition.pipelines import kind_of
from .resume import Identity

SEEDS = "its shuffle has no fixed seed, so its order cannot be repeated: give shuffle(…, seed=…) or a global seed"
UNORDERED = "it does not keep the order of its elements (deterministic is off)"
_SETTINGS = (
    "batch_size", "block_length", "buffer_size", "cycle_length", "drop_remainder", "index", "num_shards",
    "reshuffle_each_iteration", "seed", "seed2",
)  # fmt: skip
"""Settings of operations on which an order depends."""
_NAMES_MAX = 10_000
"""Most strings of a source that are taken as names of files."""


def identity_of(dataset: Any) -> Identity:
    """Return the identity of a data set."""
    kinds: list[str] = []
    parts: list[object] = []
    length = 0
    for each in all_of(dataset):
        kind = kind_of(type(each).__name__)
        settings = {name: _static(getattr(each, f"_{name}", None)) for name in _SETTINGS}
        kinds.append(kind)
        parts.append((kind, str(each.element_spec), {} if kind == "Prefetch" else settings, _names(each)))
        length += 0 if each._inputs() else int(each.cardinality())
    return Identity(_title(kinds), _digest(parts), length, int(dataset.cardinality()), _unknown(dataset))


def _unknown(dataset: Any) -> str:
    """Return why another run would draw other elements, "" if it draws the same."""
    if dataset.options().deterministic is False:
        return UNORDERED
    for each in shuffles_of(dataset):
        if not any(_static(seed) for seed in (each._seed, each._seed2)):
            return SEEDS
    for each in all_of(dataset):
        title = kind_of(type(each).__name__)
        if str(getattr(each, "_deterministic", "")).lower() == "false":
            return UNORDERED
        if "Random" in title or "Generator" in title:
            return f"{title} may give other elements in another run"
        for value in vars(each).values():
            if type(value).__name__ == "StructuredFunctionWrapper":
                graph_def = value.function.graph.as_graph_def()
                nodes = [*graph_def.node, *(node for one in graph_def.library.function for node in one.node_def)]
                if found := unrepeatable(node.op for node in nodes):
                    return f"its {title} runs {found}, which may give other elements in another run"
    return ""


def unrepeatable(ops: Iterable[str]) -> str:
    """Return the first operation that may give other values in another run, "" if none does."""
    for op in ops:
        if effect_of(op) in (Effect.RANDOM, Effect.PYTHON) or any(each in op for each in ("Shuffle", "Generator")):
            return op
    return ""


def draws_more(dataset: Any) -> bool:
    """Return whether further orders can be drawn from a data set's shuffle one by one.

    That needs a single shuffle, and no operation that repeats it: behind a cache or under a repeat, nobody can tell how
    many orders an iteration draws.
    """
    kinds = []
    for each in all_of(dataset):
        if "ShuffleDataset" in type(each).__name__:
            break
        kinds.append(kind_of(type(each).__name__))
    return len([*shuffles_of(dataset)]) == 1 and not {"Repeat", "Cache", "MemoryCache", "Zip", "Concatenate"} & {*kinds}


def _static(value: Any) -> object:
    import tensorflow as tf

    if value is None or isinstance(value, bool | int | str):
        return value
    try:
        found = tf.get_static_value(value)
    except (TypeError, ValueError):
        return None
    return None if found is None else found.tolist()


def _names(dataset: Any) -> list[str]:
    """Return the names of a source's files, without their folders."""
    found: list[str] = []
    tensors = [each for each in getattr(dataset, "_tensors", []) if each.dtype.name == "string"]
    filenames = getattr(dataset, "_filenames", None)
    tensors += [] if filenames is None else getattr(filenames, "_tensors", [filenames])
    for each in tensors:
        value = _static(each)
        texts = value if isinstance(value, list) else [value]
        if len(texts) <= _NAMES_MAX:
            found += [str(text).replace("\\", "/").rpartition("/")[2] for text in texts]
    return found


def _title(kinds: Iterable[str]) -> str:
    return " → ".join([*kinds][::-1])


def _digest(parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode()).hexdigest()[:32]

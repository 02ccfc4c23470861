"""A Keras model with its tables inside, of Keras' own layers alone, so that plain Keras and TensorFlow load it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray
from stretto_parameters.checksums import MULTIPLIER

from ..engine.layout import Table
from ..errors import ExportRefused
from ..keras.adapted import AdaptedKerasProgram
from ..keras.lookups import Lookup
from ..keras.private import layers_of, table_of
from ..keras.program import input_names
from ..model.program import ROWS, Program
from .checkpoint_source import Rows
from .tables import ExportedTable

_BYTES_OF_A_KEY = 200
"""Memory that a key takes while the table of a lookup layer is made and saved: Keras passes it through Python's lists
and through text. Measured with 300,000 keys: 130."""
_COPIES = 6
"""Copies of a table's weights while a model is made and saved: one here, and Keras' own. Measured with rows of 16 and
64 floats: 5.1 beside the one here."""


def bytes_of(table: ExportedTable) -> int:
    """Return about how much memory a table takes while a model with it is made and saved."""
    return table.count() * (4 * table.dimension * _COPIES + (_BYTES_OF_A_KEY if table.key == "key" else 0))


def save(model: Any, path: Path) -> None:
    """Write a model as one file. Raises ExportRefused if Keras cannot write or load it, for the classes in it."""
    own = _own_classes(model)
    with _refusing(model, own):
        model.save(path)
        if own:
            keras.models.load_model(path, own, compile=False)


def check_described(model: Any) -> None:
    """Raise ExportRefused if Keras cannot describe a model, which it does before it writes one."""
    with _refusing(model, _own_classes(model)):
        keras.saving.serialize_keras_object(model)


def _own_classes(model: Any) -> dict[str, type[Any]]:
    kinds = {type(each) for each in [model, *layers_of(model)]}
    return {kind.__name__: kind for kind in kinds if kind.__module__.partition(".")[0] != "keras"}


@contextlib.contextmanager
def _refusing(model: Any, own: Mapping[str, type[Any]]) -> Generator[None]:
    try:
        yield
    except Exception as error:  # whatever a class of the user's raises
        why = " ".join(str(error).split())[:200]
        named = sorted(name for name, kind in own.items() if kind.__module__.partition(".")[0] != "stretto")
        raise ExportRefused(
            f"Keras cannot save {type(model).__name__} as a .keras file and load it again ({type(error).__name__}: "
            f"{why}): give {', '.join(named) or 'it'} a get_config() and a constructor that takes what it "
            "returns, or use --format savedmodel or --format parquet"
        ) from error


def save_for_serving(program: Program, model: Any, path: Path) -> None:
    """Write a model as a SavedModel with the signature `serving_default`."""
    # Keras would take the ids of a model that is not functional for floats
    signature = [program.input_signature] if isinstance(program, AdaptedKerasProgram) else None
    model.export(path, format="tf_saved_model", verbose=False, input_signature=signature)


def dense_variables(program: Program) -> list[Any]:
    """Return the variables of a model that are in the model alone, and in no table."""
    tables = {id(table_of(layer)) for layer in layers_of(program.model) if isinstance(layer, Lookup)}
    return [each for each in program.model.variables if id(each) not in tables]


def with_tables(program: Program, values: Mapping[str, Rows]) -> Any:
    """Return a model that takes keys where the program's takes rows. values: the rows by table.

    A key without a row gets its initial weights, as in training: they are computed from the key.
    """
    model = program.model
    names = input_names(model)
    inputs: dict[str, Any] = {}
    given: list[Any] = []
    for name, tensor in zip(names, model.inputs, strict=True):
        if name not in values:
            inputs[name] = keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
            given.append(inputs[name])
            continue
        table = program.layout.tables[[*program.tables].index(name)]
        asked = key_input(name, names)
        inputs[asked] = keras.Input((tensor.shape[1],), dtype="int64", name=asked)
        given.append(_looked_up(name, inputs[asked], table, values[name]))
    return keras.Model(inputs, model(keras.tree.pack_sequence_as(model.input, given)))


def key_input(name: str, taken: list[str]) -> str:
    """Return the name of the input for the keys of a table: `keys` for `rows`, `keys_user` for `rows_user`."""
    found = f"keys{name.removeprefix(ROWS)}"
    while found in taken:
        found = f"{found}_"
    return found


def _looked_up(name: str, keys: Any, table: Table, known: Rows) -> Any:
    # the first place is that of all unknown keys; with the token in front, no key is taken for it
    lookup = keras.layers.IntegerLookup(name=f"{name}_lookup")
    lookup.set_vocabulary(np.concatenate([np.array([-1], np.int64), known.keys]))
    embedding = keras.layers.Embedding(len(known.keys) + 1, table.dimension, name=f"{name}_table")
    places = lookup(keys)
    rows = embedding(places)
    embedding.set_weights([np.concatenate([np.zeros((1, table.dimension), np.float32), known.weights])])
    is_unknown = ops.equal(ops.expand_dims(places, -1), 0)
    return ops.where(is_unknown, _initial(keys, table), rows)


def _initial(keys: Any, table: Table) -> Any:
    """Return the weights of keys before their first update, as `stretto_parameters.reference.initial_weights`.

    Tensors have signed integers here: multiplication has the same bits, and a shift has to drop the sign's.
    """
    mixed = ops.multiply(_xor_shift(keys, 32), _constant(MULTIPLIER))
    stored = ops.expand_dims(_xor_shift(mixed, 29), -1)
    steps = np.arange(1, table.dimension + 1, dtype=np.uint64) + np.uint64(table.seed & 0xFFFFFFFF)
    z = ops.add(stored, (steps * np.uint64(MULTIPLIER)).view(np.int64))
    z = ops.multiply(_xor_shift(z, 30), _constant(0xBF58476D1CE4E5B9))
    z = ops.multiply(_xor_shift(z, 27), _constant(0x94D049BB133111EB))
    units = ops.cast(_shifted(z, 40), "float32")
    slope, scale = (float(np.float32(each)) for each in (2.0**-23 * table.initial_scale, table.initial_scale))
    found = ops.subtract(ops.multiply(units, slope), scale)
    return ops.cast(ops.cast(found, "bfloat16"), "float32") if table.weights == "bfloat16" else found


def _xor_shift(value: Any, bits: int) -> Any:
    return ops.bitwise_xor(value, _shifted(value, bits))


def _shifted(value: Any, bits: int) -> Any:
    return ops.bitwise_and(ops.bitwise_right_shift(value, bits), _constant(2 ** (64 - bits) - 1))


def _constant(value: int) -> NDArray[np.int64]:
    # of one element: Keras saves a number without dimensions as one of Python, which has no type when it is loaded
    return np.array([value], np.uint64).view(np.int64)

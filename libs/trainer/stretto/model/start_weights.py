"""The weights of an earlier Keras model as the start of a job's own: `model.restore_from`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from stretto_wire.stores.filesystems import open_store

from ..errors import ModelRefused


def take_weights(model: Any, url: str) -> None:
    """Set all variables of a Keras model from a `.keras` file or SavedModel of the same model.

    Raises ModelRefused if it cannot be read, or is of another model.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise ModelRefused(
            f"model.restore_from = {url} is for Keras models, and build() gave {type(model).__name__}; load the "
            "weights in build()"
        )
    with tempfile.TemporaryDirectory() as scratch:
        path = _fetched(url, Path(scratch))
        try:
            if path.suffix == ".keras":
                model.load_weights(path)
            else:
                _take_from_saved_model(model, path)
        except ModelRefused:
            raise
        except Exception as error:  # zipfile, h5py, Keras and TensorFlow raise errors of many kinds
            raise ModelRefused(
                f"model.restore_from = {url} does not fit build() ({type(error).__name__}: {str(error)[:500]}); name a "
                "model with the same layers: that of a task with rows is dense.keras of an export as Parquet"
            ) from error


def _fetched(url: str, scratch: Path) -> Path:
    """Return a path on a disk that has what is at `url`. Raises ModelRefused."""
    try:
        store, path = open_store(url)
        if not store.exists(path):
            raise FileNotFoundError("there is nothing")
        if "file" in store.protocol:
            return Path(path)
        local = scratch / path.rstrip("/").rpartition("/")[2]
        store.get(path.rstrip("/"), str(local), recursive=True)
        return local
    except Exception as error:  # whatever a file system raises
        raise ModelRefused(
            f"model.restore_from = {url} cannot be read ({type(error).__name__}: {error}); name a .keras file or the "
            "folder of a SavedModel that the pods can read"
        ) from error


def _take_from_saved_model(model: Any, path: Path) -> None:
    import tensorflow as tf

    found = list(getattr(tf.saved_model.load(str(path)), "variables", ()))
    wanted = model.variables
    shapes = [tuple(each.shape) for each in found]
    if shapes != [tuple(each.shape) for each in wanted]:
        raise ModelRefused(
            f"model.restore_from = {path} has variables of shapes {shapes}, build() gave "
            f"{[tuple(each.shape) for each in wanted]}; name a SavedModel that Keras 3 wrote of the same model"
        )
    for variable, value in zip(wanted, found, strict=True):
        variable.assign(value)

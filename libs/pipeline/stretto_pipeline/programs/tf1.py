"""Programs of TensorFlow 1: in their modules, `tensorflow` is `tensorflow.compat.v1`."""

from __future__ import annotations

import builtins
import importlib.util
import os
from pathlib import Path
from typing import Any

LAYERS = "tf.layers and tf.keras of TensorFlow 1 need the package tf_keras"
WITHOUT_LAYERS = "is not available with Keras 3"
"""Text of TensorFlow's error where a program uses them without that package."""


def use_tf1(folder: Path) -> None:
    """Give modules in a folder TensorFlow's first version, with its behaviour, when they import TensorFlow."""
    original = builtins.__import__
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name != "tensorflow" or level or not _is_in(folder, globals or {}):
            return original(name, globals, locals, fromlist, level)
        first: Any = original("tensorflow.compat.v1", globals, locals, ("v1",), 0)
        first.disable_v2_behavior()
        return first

    builtins.__import__ = imported


def _is_in(folder: Path, names: dict[str, Any]) -> bool:
    file = names.get("__file__")
    return file is not None and folder in Path(file).resolve().parents

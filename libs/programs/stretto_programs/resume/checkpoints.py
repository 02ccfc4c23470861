"""Hooks in the functions with which programs write and restore checkpoints."""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from ..import_hooks import Hook, replace_method
from .resume import Resume

ASYNCHRONOUS = "an asynchronous checkpoint is written after later steps: no place is kept for it"


class Checkpoints:
    """The hooks for a program's checkpoints. resume: keeps the places beside them."""

    def __init__(self, resume: Resume) -> None:
        self._resume = resume

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        if not self._resume.is_on:
            return {}
        return {
            "tensorflow.python.checkpoint.checkpoint": self._hook_checkpoints,
            "keras.src.saving.saving_api": self._hook_keras,
            "keras.src.callbacks.backup_and_restore": self._hook_backups,
            **self._resume.seeds.hooks(),
        }

    def _hook_checkpoints(self, module: ModuleType) -> None:
        def save(original: Any) -> Any:
            @wraps(original)
            def run(saver: Any, file_prefix: Any, *args: Any, **kwargs: Any) -> Any:
                from tensorflow.python.checkpoint import checkpoint_context

                if checkpoint_context.in_async_metrics_context():
                    self._resume.say_once(ASYNCHRONOUS)
                    return original(saver, file_prefix, *args, **kwargs)
                with self._resume.writing(file_prefix):
                    return original(saver, file_prefix, *args, **kwargs)

            return run

        def restore(original: Any) -> Any:
            @wraps(original)
            def run(saver: Any, save_path: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(saver, save_path, *args, **kwargs)
                self._resume.read(save_path)
                return result

            return run

        replace_method(module.TrackableSaver, "save", save)
        replace_method(module.TrackableSaver, "restore", restore)

    def _hook_keras(self, module: ModuleType) -> None:
        def save(original: Any) -> Any:
            @wraps(original)
            def run(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
                with self._resume.writing(filepath):
                    return original(model, filepath, *args, **kwargs)

            return run

        def load_weights(original: Any) -> Any:
            @wraps(original)
            def run(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(model, filepath, *args, **kwargs)
                self._resume.read(filepath)
                return result

            return run

        def load_model(original: Any) -> Any:
            @wraps(original)
            def run(filepath: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(filepath, *args, **kwargs)
                self._resume.read(filepath)
                return result

            return run

        replace_method(module, "save_model", save)
        replace_method(module, "save_weights", save)
        replace_method(module, "load_weights", load_weights)
        replace_method(module, "load_model", load_model)

    def _hook_backups(self, module: ModuleType) -> None:
        def load(original: Any) -> Any:
            @wraps(original)
            def run(callback: Any) -> None:
                original(callback)
                # Keras does not restore the current epoch: the next backup within a resumed epoch would name epoch 0
                callback._current_epoch = callback.model._initial_epoch or 0

            return run

        replace_method(module.BackupAndRestore, "_load_model", load)

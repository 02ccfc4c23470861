"""The algorithm that a setting names."""

from __future__ import annotations

from typing import Any

from stretto_core.algorithms import AlgorithmError, DecisionKind

from stretto_runtime.process.faults import SettingsFault


def algorithm(kind: DecisionKind, name: str, variable: str) -> Any:
    """The algorithm that a variable of the environment names. Raises SettingsFault."""
    try:
        return kind.named(name)
    except AlgorithmError as error:
        raise SettingsFault(f"{variable}={name!r}: {error}") from error

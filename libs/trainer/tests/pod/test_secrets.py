"""A pod takes its job's secrets from a file into its environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stretto.errors import PodError
from stretto.pod.process import take_secrets


def test_secrets_become_variables_and_what_is_set_stays(tmp_path: Path) -> None:
    """Like ``envFrom`` on Kubernetes: a variable that the job or the actuator has set wins."""
    file = tmp_path / "secrets.json"
    file.write_text(json.dumps({"KEY": "value", "SET": "other"}))
    environment = {"STRETTO_SECRETS": str(file), "SET": "mine"}
    take_secrets(environment)
    assert environment == {"KEY": "value", "SET": "mine"}


def test_a_pod_without_secrets_changes_nothing() -> None:
    environment = {"A": "b"}
    take_secrets(environment)
    assert environment == {"A": "b"}


def test_a_file_that_cannot_be_read_ends_the_pod_without_a_word_of_its_content(tmp_path: Path) -> None:
    file = tmp_path / "secrets.json"
    file.write_text('{"KEY": canary}')
    with pytest.raises(PodError, match="STRETTO_SECRETS") as refused:
        take_secrets({"STRETTO_SECRETS": str(file)})
    assert "canary" not in str(refused.value)
    assert refused.value.__cause__ is None

"""Only a missing Node and a missing registry are reasons to leave the reader in another language out."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract import subscriber
from tests.contract.subscriber import SubscriberUnavailable


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """An npm that fails with these words."""
    monkeypatch.setattr(subscriber.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(subscriber.shutil, "which", lambda name: name)

    def fails(words: str) -> None:
        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess(command, 1, "", words)

        monkeypatch.setattr(subscriber.subprocess, "run", run)

    return fails


@pytest.mark.parametrize("code", ["ENOTFOUND", "EAI_AGAIN", "ETIMEDOUT"])
def test_no_registry_is_a_reason_to_skip(npm: Callable[[str], None], code: str) -> None:
    npm(f"npm error code {code}\nnpm error network request failed\n")
    with pytest.raises(SubscriberUnavailable, match=code):
        subscriber.install()


@pytest.mark.parametrize("words", ["npm error code EUSAGE\nlock file out of date\n", "npm error code E404\n", "crash"])
def test_any_other_failure_of_npm_fails(npm: Callable[[str], None], words: str) -> None:
    npm(words)
    with pytest.raises(RuntimeError, match="npm ci failed"):
        subscriber.install()


def test_no_node_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber.shutil, "which", lambda name: None)
    with pytest.raises(SubscriberUnavailable, match="node is not on the PATH"):
        subscriber.install()

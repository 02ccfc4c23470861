"""Access by token: the token, its file, and the one way to run without."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr
from stretto_gateway.__main__ import own_token
from stretto_gateway.settings import GatewaySettings
from stretto_runtime.access.tokens import renew_own
from stretto_runtime.process.faults import SettingsFault


def configured(folder: Path, **given: object) -> GatewaySettings:
    return GatewaySettings.model_construct(state_folder=folder, **{"token": None, "token_file": None, **given})


def test_many_gateways_that_start_at_once_agree_on_one_private_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: own_token(configured(tmp_path))(), range(32)))
    assert len(tokens) == 1
    assert len(tokens.pop()) > 30
    assert os.listdir(tmp_path) == ["gateway.token"]
    assert stat.S_IMODE((tmp_path / "gateway.token").stat().st_mode) == 0o600


def test_a_renewed_token_holds_at_once_and_a_spoilt_file_changes_nothing(tmp_path: Path) -> None:
    own, path = own_token(configured(tmp_path)), tmp_path / "gateway.token"
    before = own()
    renew_own(path)
    assert before != own() == path.read_text().strip()
    now = own()
    for spoil in (lambda: path.write_text(""), path.unlink):
        spoil()
        assert own() == now


def test_an_empty_token_file_is_an_error_and_does_not_open_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "gateway.token").write_text("\n")
    with pytest.raises(SettingsFault, match=r"gateway\.token is empty: remove it"):
        own_token(configured(tmp_path))()


def test_only_an_empty_setting_opens_the_gateway(tmp_path: Path) -> None:
    assert own_token(configured(tmp_path, token=SecretStr("")))() == ""
    assert os.listdir(tmp_path) == []

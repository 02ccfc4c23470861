"""Access by token: the token, its file, and the one way to run without."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr
from stretto_gateway.__main__ import token_of
from stretto_gateway.settings import GatewaySettings
from stretto_runtime.process.faults import SettingsFault


def configured(folder: Path, **given: object) -> GatewaySettings:
    return GatewaySettings.model_construct(state_folder=folder, **{"token": None, "token_file": None, **given})


def test_many_gateways_that_start_at_once_agree_on_one_private_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: token_of(configured(tmp_path)), range(32)))
    assert len(tokens) == 1
    assert len(tokens.pop()) > 30
    assert os.listdir(tmp_path) == ["gateway.token"]
    assert stat.S_IMODE((tmp_path / "gateway.token").stat().st_mode) == 0o600


def test_an_empty_token_file_is_an_error_and_does_not_open_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "gateway.token").write_text("\n")
    with pytest.raises(SettingsFault, match=r"gateway\.token is empty: remove it"):
        token_of(configured(tmp_path))


def test_only_an_empty_setting_opens_the_gateway(tmp_path: Path) -> None:
    assert token_of(configured(tmp_path, token=SecretStr(""))) == ""
    assert os.listdir(tmp_path) == []

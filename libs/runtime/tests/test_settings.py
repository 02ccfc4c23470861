"""A misspelt variable is refused, never ignored."""

from __future__ import annotations

import pytest
from pydantic import Field, SecretStr
from stretto_runtime import Settings, SettingsFault


class PlannerSettings(Settings):
    top_k: int = Field(3, ge=1)
    weights: tuple[float, ...] = (1.0,)


def test_defaults_and_overrides() -> None:
    assert PlannerSettings.load("planner", {}).top_k == 3
    assert PlannerSettings.load("planner", {"STRETTO_TOP_K": "5"}).top_k == 5
    assert PlannerSettings.load("planner", {"STRETTO_PLANNER_TOP_K": "6", "STRETTO_TOP_K": "5"}).top_k == 6
    assert PlannerSettings.load("planner", {"STRETTO_WEIGHTS": "[0.5, 2]"}).weights == (0.5, 2.0)


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsFault, match=r"STRETTO_NATS_URI is not a setting; did you mean STRETTO_NATS_URL\?"):
        PlannerSettings.load("planner", {"STRETTO_NATS_URI": "nats://x"})
    with pytest.raises(SettingsFault, match="did you mean STRETTO_PLANNER_TOP_K"):
        PlannerSettings.load("planner", {"STRETTO_PLANNER_TOPK": "3"})


def test_a_refused_value_names_variable_value_and_reason() -> None:
    with pytest.raises(SettingsFault, match=r"STRETTO_TOP_K='0' is refused: give a whole number, at least 1; "):
        PlannerSettings.load("planner", {"STRETTO_TOP_K": "0"})


def test_a_text_is_taken_as_it_is_and_a_secret_one_never_told() -> None:
    class Guarded(PlannerSettings):
        pin: SecretStr = Field(SecretStr("none"), min_length=4)

    for secret in ("{canary", "[canary]", '["canary"]'):
        assert Guarded.load("planner", {"STRETTO_PIN": secret}).pin.get_secret_value() == secret
    with pytest.raises(SettingsFault, match=r"STRETTO_PIN=\(a secret\) is refused"):
        Guarded.load("planner", {"STRETTO_PIN": "abc"})
    with pytest.raises(SettingsFault, match=r"STRETTO_WEIGHTS='\[1, 2' is refused"):
        PlannerSettings.load("planner", {"STRETTO_WEIGHTS": "[1, 2"})


def test_variables_of_other_components_and_of_nobody_are_not_ours() -> None:
    settings = PlannerSettings.load("planner", {"STRETTO_FITTER_WINDOW": "3", "PATH": "/bin"})
    assert settings == PlannerSettings()

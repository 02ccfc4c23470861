"""A misspelt variable is refused, never ignored."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr
from stretto_bus.login import redacted
from stretto_core.model.teams import TeamQuota, quota_of
from stretto_runtime import Settings, SettingsFault
from stretto_runtime.inputs import LARGEST_BYTES
from stretto_runtime.settings import AllowedSettings, ClusterSettings, TeamsSettings


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


def test_a_budget_below_the_largest_request_is_refused() -> None:
    """A job could never send the largest request, and would be told to ask again for ever."""
    name = "STRETTO_REQUESTS_BURST_BYTES"
    assert PlannerSettings.load("planner", {name: str(LARGEST_BYTES)}).requests_burst_bytes == LARGEST_BYTES
    with pytest.raises(SettingsFault, match=f"{name}='{LARGEST_BYTES - 1}' is refused: .*at least {LARGEST_BYTES}"):
        PlannerSettings.load("planner", {name: str(LARGEST_BYTES - 1)})


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
    of_several = {"STRETTO_STORE_URL": "file:///s", "STRETTO_CPU_CORES": "3", "STRETTO_EXTENDED_RESOURCES": "{}"}
    assert PlannerSettings.load("planner", of_several) == PlannerSettings()


passwords = st.lists(st.sampled_from(["canary", "@", "/", ":", "#", "?", "%", ",", "//"]), min_size=1).map("".join)


@given(st.lists(st.tuples(st.sampled_from(["nats", "tls", "redis"]), passwords), min_size=1, max_size=3))
def test_of_urls_only_where_they_lead_is_shown_however_a_password_is_written(servers: list[tuple[str, str]]) -> None:
    urls = [f"{scheme}://{{}}host-{number}:4222/0" for number, (scheme, _) in enumerate(servers)]
    whole = ",".join(url.format(f"user:{password}@") for url, (_, password) in zip(urls, servers, strict=True))
    bare = ",".join(url.format("") for url in urls)
    assert redacted(whole) == redacted(bare) == bare


def test_a_refused_url_is_told_without_its_password() -> None:
    class Cached(PlannerSettings):
        cache: str = Field("", pattern="^redis://[^/]*$")

    with pytest.raises(SettingsFault, match="STRETTO_CACHE='redis://host/0' is refused"):
        Cached.load("planner", {"STRETTO_CACHE": "redis://:can/ary@x@host/0"})


def test_lists_of_what_is_allowed_are_read_by_one_name_in_every_service() -> None:
    """One variable serves all that check; a misspelt one is refused by them, and passed over by all others."""
    told = {"STRETTO_ALLOWED_IMAGES": "registry.example.com/team/*, ubuntu", "STRETTO_ALLOWED_QUEUES": "a"}
    for service in ("gateway", "actuator"):
        allowed = AllowedSettings.load(service, told).allowed
        assert (allowed.images, allowed.queues) == (("registry.example.com/team/*", "ubuntu"), ("a",))
    assert PlannerSettings.load("planner", told) == PlannerSettings()
    with pytest.raises(SettingsFault, match="did you mean STRETTO_ALLOWED_IMAGES"):
        AllowedSettings.load("gateway", {"STRETTO_ALLOWED_IMAGE": "ubuntu"})


def test_a_list_that_could_be_read_in_two_ways_is_refused() -> None:
    for url in ("s3://user:key@bucket/a", "file:///a/../b", "S3://a"):
        with pytest.raises(SettingsFault, match="STRETTO_ALLOWED_STORES"):
            AllowedSettings.load("gateway", {"STRETTO_ALLOWED_STORES": url})


def test_types_of_devices_and_extended_resources_have_room_in_one_amount() -> None:
    types = [{"name": f"t{n}", "price_per_hour": 1, "count": 1, "cpu_cores": 1, "memory": "1Gi"} for n in range(16)]
    told = {"STRETTO_DEVICE_TYPES": json.dumps(types)}
    for names, refused in ((4, False), (5, True)):
        extended = {f"example.com/r{number}": 1 for number in range(names)}
        environ = told | {"STRETTO_EXTENDED_RESOURCES": json.dumps(extended)}
        with pytest.raises(SettingsFault, match="at most 4 of them beside 16 types") if refused else nullcontext():
            ClusterSettings.load("planner", environ)


def test_quotas_of_teams_are_read_by_one_name_in_every_service() -> None:
    """Goal: gateway and arbiter apply the same quotas. Method: load one environment as both, as a third, misspelt."""
    told = {"STRETTO_TEAMS_QUOTAS": '{"ads": {"cores": 4, "jobs": 2}, "*": {"weight": 0.5}}'}
    for service in ("gateway", "arbiter"):
        quotas = TeamsSettings.load(service, told).quotas
        assert quotas == {"ads": TeamQuota(cores=4.0, jobs=2), "*": TeamQuota(weight=0.5)}
        assert quota_of(quotas, "feed").weight == 0.5
        assert TeamsSettings.load(service, told | {"STRETTO_TEAMS_QUOTA_HOLDER": "kueue"}).quotas == {}
    assert PlannerSettings.load("planner", told) == PlannerSettings()
    with pytest.raises(SettingsFault, match="did you mean STRETTO_TEAMS_QUOTAS"):
        TeamsSettings.load("arbiter", {"STRETTO_TEAMS_QUOTA": "{}"})


@pytest.mark.parametrize("text", ['{"Ads": {}}', '{"ads": {"core": 4}}', '{"ads": {"cores": -1}}', '{"ads": 4}', "ads"])
def test_a_quota_that_could_be_misread_is_refused(text: str) -> None:
    """Goal: a typing error never lifts a limit. Method: quotas with an error each."""
    with pytest.raises(SettingsFault, match=r"STRETTO_TEAMS_QUOTAS=.* is refused"):
        TeamsSettings.load("gateway", {"STRETTO_TEAMS_QUOTAS": text})

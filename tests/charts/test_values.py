"""Values of the chart: checked if given, named if missing, and each explained."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from helm_python import HelmError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.charts import values_table
from tests.charts.rendering import CHART, EVERYTHING, NEEDED, as_given, chart, defaults, merged
from tests.release.versions import current

VERSION = current()

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FREE = ("labels", "annotations", "Annotations", "env", "nodeSelector", "affinity", "roles", "requests", "limits")
"""maps whose keys are the user's"""

AUTOSCALED = {"autoscaling": {"enabled": True}}
FORWARDER = {"forwarder": {"enabled": True}}


def places(values: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every map of the values that only knows certain keys."""
    yield at
    for key, value in values.items():
        if isinstance(value, dict) and not key.endswith(FREE):
            yield from places(value, (*at, key))


def with_added(values: dict[str, Any], place: tuple[str, ...], key: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(values)
    inner = changed
    for step in place:
        inner = inner[step]
    inner[key] = value
    return changed


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(HelmError) as caught:
        as_given(values)
    return str(caught.value)


class TestTheSchema:
    def test_takes_the_defaults(self) -> None:
        chart().validate_schema(defaults())

    def test_takes_every_switch(self) -> None:
        chart().validate_schema(merged(defaults(), EVERYTHING))

    @settings(max_examples=60)
    @given(st.sampled_from(sorted(places(defaults()))), st.sampled_from(["replica", "enable", "urls", "x"]))
    def test_refuses_what_nothing_reads_and_says_where(self, place: tuple[str, ...], key: str) -> None:
        said = refusal(with_added(merged(defaults(), NEEDED), place, key, 1))
        assert key in said
        assert "/".join(place) in said

    def test_knows_the_same_keys_as_the_values(self) -> None:
        """Closed, and without a key that the values do not explain."""
        assert unexplained(SCHEMA, defaults()) == []

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"image": {"tag": "latest"}}, "image/tag"),
            ({"defaults": {"image": {"tag": "latest"}}}, "defaults/image/tag"),
            ({"nats": {"url": "nats://user:password@nats:4222"}}, "nats/url"),
            ({"services": {"planner": {"replicas": -1}}}, "services/planner/replicas"),
            ({"services": {"planer": {}}}, "planer"),
            ({"cluster": {"cpuCores": 0}}, "cluster/cpuCores"),
            ({"cluster": {"extended": {"nvidia.com/gpu": 0.5}}}, "cluster/extended/nvidia.com"),
            ({"cluster": {"extended": {"gpu": 1}}}, "cluster/extended"),
            ({"cluster": {"deviceTypes": [{"name": "gpu-a"}]}}, "cluster/deviceTypes/0"),
            ({"services": {"oom": {"image": {"digest": "sha256:1"}}}}, "services/oom/image/digest"),
            ({"networkPolicy": {"nats": [{}]}}, "networkPolicy/nats/0"),
        ],
    )
    def test_refuses_what_cannot_be_right(self, values: dict[str, Any], named: str) -> None:
        assert named in refusal(merged(NEEDED, values))


def unexplained(schema: Mapping[str, Any], values: Any, at: str = "") -> list[str]:
    reference = schema.get("$ref", "")
    schema = SCHEMA["definitions"][reference.rpartition("/")[2]] if reference else schema
    if "properties" not in schema or not isinstance(values, dict):
        return []
    assert schema["additionalProperties"] is False, at
    known, shown = set(schema["properties"]) - {"global"}, set(values)
    if at.startswith("services/"):  # explained under `defaults`
        return []
    wrong = [f"{at}{key}" for key in sorted(known ^ shown)]
    return wrong + [
        each
        for key in sorted(known & shown)
        for each in unexplained(schema["properties"][key], values[key], f"{at}{key}/")
    ]


NO_KEYS = {"nats": {"credentials": {"secretPrefix": ""}}}


class TestWhatIsMissing:
    @pytest.mark.parametrize(
        ("without", "named"),
        [
            ({"image": {"registry": ""}}, "image.registry: say where stretto/"),
            ({"store": {"url": ""}}, "store.url"),
            ({"cluster": {"cpuCores": None}}, "cluster.cpuCores"),
            ({"cluster": {"memoryGiB": None}}, "cluster.memoryGiB"),
            ({"gateway": {"token": {"secret": ""}}}, "gateway.token.secret"),
            ({"gateway": {"proxies": "", "ingress": {"enabled": True, "host": "a.example"}}}, "gateway.proxies"),
            ({"services": {"oom": AUTOSCALED}}, "monitoring.prometheus.url"),
            ({"monitoring": {"serviceMonitor": {"enabled": True}}}, "networkPolicy.metrics"),
            ({"monitoring": {"alerts": {"enabled": True}}}, "networkPolicy.metrics"),
            ({"store": {"claim": "both"}, "trainer": {"namespace": "jobs"}}, "not both"),
            ({"store": {"url": "", "claim": "checkpoints"}}, "trainer.namespace"),
            (NO_KEYS, "nats.insecure=true"),
            (merged(NO_KEYS, {"provision": {"external": True}}), "provision.external"),
            (merged(NO_KEYS, {"nats": {"insecure": True}, "provision": {"external": True}}), "provision.external"),
            ({"allowed": {"secrets": ["ads-*=ada"]}, "trainer": {"namespace": "training"}}, "allowed.secrets"),
            ({"allowed": {"volumes": ["claim:clicks", "folder:/srv/clicks"]}}, "trainer.namespace"),
            ({"services": FORWARDER, "forwarder": {"endpoints": {"secret": ""}}}, "forwarder.endpoints.secret"),
            ({"services": merged(FORWARDER, {"forwarder": AUTOSCALED})}, "services.forwarder.autoscaling"),
        ],
    )
    def test_is_named(self, without: dict[str, Any], named: str) -> None:
        assert named in refusal(merged(NEEDED, without))

    def test_secrets_may_be_a_pattern_in_a_namespace_of_their_own(self) -> None:
        """There is nothing but what an operator has put there for jobs, and the actuator keeps pods' own back."""
        assert as_given(merged(NEEDED, {"allowed": {"secrets": ["ads-*"]}, "trainer": {"namespace": "jobs"}}))

    def test_is_not_asked_for_where_nobody_needs_it(self) -> None:
        off = {name: {"enabled": False} for name in ("checkpoints", "actuator", "planner", "arbiter", "gateway")}
        assert as_given({"services": off, "nats": {"insecure": True}, "image": NEEDED["image"]})

    @pytest.mark.parametrize(
        ("image", "made"),
        [
            ({"registry": "registry.example.com:5000"}, f"registry.example.com:5000/stretto/trainer:{VERSION}"),
            ({"registry": "localhost"}, f"localhost/stretto/trainer:{VERSION}"),
            ({"registry": "", "repository": "registry.example.com/ads"}, f"registry.example.com/ads/trainer:{VERSION}"),
        ],
    )
    def test_a_registry_may_be_stated_in_either_place(self, image: dict[str, str], made: str) -> None:
        """No image is ever taken from a name that somebody else may claim."""
        assert made in json.dumps(as_given(merged(NEEDED, {"image": image})))
        assert "image.registry" in refusal(merged(NEEDED, {"image": {"registry": "", "repository": "ads"}}))


def test_every_value_is_explained() -> None:
    assert [row.path for row in values_table.rows() if not row.text] == []


def test_the_readme_tells_every_value() -> None:
    readme = CHART.parent / "README.md"
    assert values_table.filled(readme.read_text()) == readme.read_text(), "python -m tests.charts.values_table"

"""The page about S3 on Kubernetes: its values, Secrets and job fit the chart and one another."""

from __future__ import annotations

import shlex
from typing import Any

import yaml
from stretto_wire import JobSpec

from tests.charts.rendering import component, merged, of_kind, pod_of, rendered
from tests.charts.test_settings import told
from tests.docs.site import OWN
from tests.e2e.tutorials import fences

HERE = "tests/charts/test_object_store.py"
FENCES = fences(OWN / "how-to" / "object-store.md")
VALUES: dict[str, Any] = next(
    yaml.safe_load(each.text) for each in FENCES if each.language == "yaml" and each.tested.startswith(HERE)
)
COMMANDS = next(each.text for each in FENCES if each.language == "sh" and each.tested.startswith(HERE)).splitlines()
JOB = next(JobSpec.parse(yaml.safe_load(each.text)) for each in FENCES if each.language == "yaml" and not each.tested)


def test_the_services_have_the_stores_key_and_jobs_may_name_theirs() -> None:
    for deployment in of_kind(rendered(VALUES), "Deployment"):
        given = pod_of(deployment)["spec"]["containers"][0].get("envFrom", [])
        has_key = component(deployment) in ("checkpoints", "actuator")
        assert given == ([{"secretRef": {"name": VALUES["store"]["secret"]}}] if has_key else []), component(deployment)
    assert told(VALUES, "checkpoints").store == VALUES["store"]["url"]
    images = merged(VALUES, {"allowed": {"images": [JOB.image]}})
    for service in ("gateway", "checkpoints", "actuator"):
        assert told(images, service).allowed.findings(JOB) == []
    without = merged(images, {"allowed": {"secrets": [], "stores": []}})
    assert {each.field for each in told(without, "gateway").allowed.findings(JOB)} == {
        "environment_from.0",
        "checkpoint.url",
    }


def test_the_secrets_are_made_where_they_are_looked_for() -> None:
    """The store's in the release's namespace, the job's in that of the pods; the values are those of the page."""
    *secrets, upgrade = (shlex.split(line) for line in COMMANDS)
    made = {words[words.index("generic") + 1]: "stretto-pods" in words for words in secrets}
    assert made == {VALUES["store"]["secret"]: False, JOB.environment_from[0]: True}
    assert upgrade[-2:] == ["--values", "values.yaml"]

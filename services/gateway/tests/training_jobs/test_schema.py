"""The CustomResourceDefinition is one that a cluster takes, and says what a job file may say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from fake_kubernetes import schemas
from stretto_gateway.training_jobs import schema as crd
from stretto_wire.contract.submission import SPEC
from stretto_wire.jobspec.spec import JobSpec

ROOT = Path(__file__).parents[4]
COMMITTED = ROOT / "charts" / "stretto" / "crds" / "trainingjob.yaml"
FREE = {"x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"}
FORBIDDEN = {"$ref", "anyOf", "allOf", "oneOf", "not", "const", "default", "patternProperties", "prefixItems", "title"}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from nodes(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}.{key}")


def root() -> dict[str, Any]:
    return crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_the_committed_file_is_what_the_code_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main([str(COMMITTED), "--check"]) == 0, "run python -m stretto_gateway.training_jobs.schema on it"
    other = tmp_path / "crds" / "tj.yaml"
    assert crd.main([str(other), "--check"]) == 1
    assert "differs from the code" in capsys.readouterr().err
    assert crd.main([str(other)]) == 0
    assert crd.main([str(other), "--check"]) == 0


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.36"])
def test_the_definition_follows_the_official_schema(version: str) -> None:
    kubernetes_validate.validate(yaml.safe_load(crd.text()), version, strict=True)


def test_the_schema_is_structural() -> None:
    """https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions"""
    for path, node in nodes(root()):
        assert not FORBIDDEN & node.keys(), path
        assert "type" in node or FREE & node.keys(), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path
        assert not {"properties", "additionalProperties"} <= node.keys(), path
        if node.get("nullable") and "enum" in node:
            assert None in node["enum"], path
        for name in node.get("required", []):
            assert name in node["properties"], path


def test_every_field_of_a_job_can_be_said() -> None:
    document = {"spec": SPEC.model_dump(mode="json"), "metadata": {"name": SPEC.name}}
    kept = schemas.check_custom(root(), document)
    assert JobSpec.parse(kept["spec"]) == SPEC


def test_sizes_are_numbers_or_texts_and_the_name_is_the_object_s() -> None:
    for size in ("2Gi", 2**31):
        spec = {
            "model": {"entry": "m:M", "arguments": {"a": 1, "b": "x", "c": True}},
            "dataset": {"samples": 10},
            "resources": {"ps": {"memory": {"min": size}}},
        }
        assert schemas.check_custom(root(), {"spec": spec}) == {"spec": spec}


def test_a_program_takes_the_place_of_a_model() -> None:
    program = {"command": ["python", "train.py"], "path": "/models/mine", "level": 2, "resize": "restart"}
    spec = {"program": program, "dataset": {"samples": 400_000, "batch_size": 64}}
    assert schemas.check_custom(root(), {"spec": spec}) == {"spec": spec}


def test_the_page_of_a_pytorch_loop_has_an_object_that_a_cluster_takes() -> None:
    """The spec of the object is the job file of the page, and a place for the image."""
    page = (ROOT / "libs" / "docs" / "pages" / "how-to" / "your-pytorch-loop.md").read_text()
    job, one = (yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    assert schemas.check_custom(root(), one) == one
    assert {**one["spec"], "name": one["metadata"]["name"]} == {**job, "image": one["spec"]["image"]}
    assert JobSpec.parse(job).resources.initial is not None


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"program": {"command": ["a"], "level": 3}}, "spec.program.level"),
        ({"model": {"entry": "no colon"}, "dataset": {"samples": 10}}, "spec.model.entry"),
        ({"model": {"entry": "m:M"}, "dataset": {"samples": "ten"}}, "spec.dataset.samples"),
        ({"model": {"entry": "m:M"}, "dataset": {"samples": 10}, "priority": 0}, "spec.priority"),
    ],
)
def test_what_the_api_server_can_tell_is_refused_there(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(schemas.Invalid, match=rf"^{field}:"):
        schemas.check_custom(root(), {"spec": spec})


def test_columns_show_fields_that_there_are() -> None:
    for column in crd.definition()["spec"]["versions"][0]["additionalPrinterColumns"]:
        node = root()
        path = column["jsonPath"].strip(".").split(".")
        if path[0] == "metadata":
            continue
        for name in path:
            node = node["properties"][name]
        assert node["type"] == column["type"]

"""The CustomResourceDefinition of TrainingJobs: ``python -m stretto_gateway.training_jobs.schema FILE`` writes it.

The definition of ``spec`` is the schema of a job (``stretto schema``) in the structural form of Kubernetes: without
references, a type at every node. Rules that this form cannot express are checked when the gateway reads an object; the
condition Failed reports them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml
from stretto_kube import Kind
from stretto_wire.jobspec.schema import job_schema

Schema = dict[str, Any]

TRAINING_JOBS = Kind("stretto.dev", "v1alpha1", "trainingjobs", "TrainingJob")
SIZE = {"x-kubernetes-int-or-string": True}
ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
KEPT = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "pattern", "enum")
CONDITIONS = ("Admitted", "Running", "Completed", "Failed", "SpecChanged")
PHASES = ("Submitted", "Waiting", "Starting", "Training", "Finishing", "Finished", "Failed", "Cancelled")


def structural(node: Schema, definitions: Schema) -> Schema:
    """Convert a node of JSON Schema to the structural form, without defaults: an object holds only what was stated."""
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        return structural({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    choices = node.get("anyOf")
    if choices is not None:
        return _described(node, _one_of(choices, definitions))
    if "const" in node:
        return _described(node, {"type": "string", "enum": [node["const"]]})
    if "type" not in node:  # whole numbers and a word
        return _described(node, SIZE | {"enum": node["enum"]})
    result: Schema = {"type": node["type"]} | {key: node[key] for key in KEPT if key in node}
    if "exclusiveMinimum" in node:
        result |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if node["type"] == "array":
        result["items"] = structural(node["items"], definitions)
    if node["type"] == "object":
        result |= _object(node, definitions)
    return _described(node, result)


def _one_of(choices: list[Schema], definitions: Schema) -> Schema:
    """Convert a choice: a nullable value, a size, or a value of any type."""
    present = [each for each in choices if each.get("type") != "null"]
    types = {each.get("type") for each in present}
    if len(present) == 1:
        chosen = structural(present[0], definitions)
        if len(choices) == 1:
            return chosen
        # a null in an enum is not equal to itself for a server of 1.20, which then refuses the whole definition
        return chosen if "enum" in chosen else {**chosen, "nullable": True}
    if types == {"integer", "string"}:
        return SIZE | ({"nullable": True} if len(present) < len(choices) else {})
    return dict(ANYTHING)


def _object(node: Schema, definitions: Schema) -> Schema:
    if "properties" in node:
        properties = {name: structural(each, definitions) for name, each in node["properties"].items()}
        required = {"required": node["required"]} if node.get("required") else {}
        return {"properties": properties, **required}
    values = node.get("additionalProperties") or next(iter(node["patternProperties"].values()))
    return {"additionalProperties": structural(values, definitions) if isinstance(values, dict) else dict(ANYTHING)}


def _described(node: Schema, result: Schema) -> Schema:
    return {"description": " ".join(node["description"].split()), **result} if "description" in node else result


def spec_schema() -> Schema:
    """Return the schema of ``spec``. The name is optional there, since the object has it."""
    schema = job_schema()
    required = [name for name in schema["required"] if name != "name"]
    return structural({**schema, "required": required}, schema["$defs"])


def status_schema() -> Schema:
    """Return the schema of ``status``, which only the gateway writes."""
    text, count = {"type": "string"}, {"type": "integer"}
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "description": ", ".join(CONDITIONS)},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text,
            "message": text,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": count,
        },
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": {**count, "description": "generation of the spec that this status describes"},
            "phase": {"type": "string", "enum": [*PHASES]},
            "workers": {**count, "description": "workers that run now"},
            "ps": {**count, "description": "parameter servers that run now"},
            "planVersion": count,
            "progress": {**text, "description": "samples trained, of all"},
            "samplesDone": count,
            "samplesTotal": count,
            "throughput": {**text, "description": "samples per second"},
            "message": text,
            "submittedAt": {"type": "string", "format": "date-time"},
            "endedAt": {"type": "string", "format": "date-time"},
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }


def definition() -> Schema:
    """Return the whole CustomResourceDefinition."""
    columns = [
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Workers", "type": "integer", "jsonPath": ".status.workers"},
        {"name": "PS", "type": "integer", "jsonPath": ".status.ps"},
        {"name": "Progress", "type": "string", "jsonPath": ".status.progress"},
        {"name": "Samples/s", "type": "string", "jsonPath": ".status.throughput"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
    ]
    spec = spec_schema()
    name = {key: value for key, value in spec["properties"]["name"].items() if key != "description"}
    schema = {
        "description": "A training job of Stretto; its name is the job's.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": spec,
            "status": status_schema(),
        },
    }
    version = {
        "name": TRAINING_JOBS.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {
        "kind": TRAINING_JOBS.name,
        "listKind": f"{TRAINING_JOBS.name}List",
        "plural": TRAINING_JOBS.plural,
        "singular": TRAINING_JOBS.name.lower(),
        "shortNames": ["tj"],
        "categories": ["all"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{TRAINING_JOBS.plural}.{TRAINING_JOBS.group}",
            "labels": {"app.kubernetes.io/part-of": "stretto"},
        },
        "spec": {"group": TRAINING_JOBS.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def text() -> str:
    """Return the definition as YAML."""

    class Dumper(yaml.SafeDumper):
        """A dumper without aliases, which people find hard to read."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = "# Generated from libs/wire by python -m stretto_gateway.training_jobs.schema\n"
    return head + yaml.dump(definition(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; with ``--check``, return 1 if the file differs from the code."""
    parser = argparse.ArgumentParser(prog="python -m stretto_gateway.training_jobs.schema", description=__doc__)
    parser.add_argument("file", type=Path, help="the YAML file to write")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(arguments)
    if not options.check:
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text(text(), encoding="utf-8")
        return 0
    same = options.file.is_file() and options.file.read_text(encoding="utf-8") == text()
    if not same:
        sys.stderr.write(f"{options.file} differs from the code: run the command without --check\n")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())

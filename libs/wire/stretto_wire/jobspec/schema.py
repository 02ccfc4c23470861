"""JSON Schema 2020-12 of the job specification, and what every schema of Stretto is made of."""

from __future__ import annotations

from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema

from ..program import IN_JOB_FILE, SERVERS_IN_PLAN
from ..quantities import with_texts_of_groups
from .spec import JobSpec

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
JOB_SCHEMA = "job.schema.json"


class WithoutFieldTitles(GenerateJsonSchema):
    """Omits the titles of fields, which only repeat their names; messages and values keep theirs."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def named(schema: Schema, name: str) -> Schema:
    """Return the schema as a document of its own, with dialect and ``$id``."""
    return {"$schema": DIALECT, "$id": name, **schema}


def job_schema() -> Schema:
    """Return the closed schema of a job file. Quantities may be texts with a unit, as in Kubernetes."""
    schema = named(JobSpec.model_json_schema(schema_generator=WithoutFieldTitles), JOB_SCHEMA)
    _close(schema)
    schema["$defs"]["DatasetSpec"]["required"].remove("samples")  # named partitions replace it
    program = schema["$defs"]["ProgramSpec"]["properties"]
    for name, allowed in IN_JOB_FILE.items():
        program[name]["enum"] = list(allowed)
    schema["required"] = ["name"]  # and a model with its dataset, or a program
    group = schema["$defs"]["WorkerGroup"]
    group["properties"] = with_texts_of_groups(group["properties"])
    return schema


def _close(node: Any) -> None:
    """Close the values that a specification shares with messages, which are open there."""
    if isinstance(node, dict):
        title = cast(Schema, node).get("title")
        if title in ("Plan", "DataPartition"):
            node["additionalProperties"] = False
        if title == "Plan":
            _without_servers(cast(Schema, node))
        for value in cast(Schema, node).values():
            _close(value)
    elif isinstance(node, list):
        for item in cast(list[Any], node):
            _close(item)


def _without_servers(plan: Schema) -> None:
    """Let a plan leave its parameter servers out, as beside a program. The reader asks for them with a model."""
    plan["required"] = [name for name in plan["required"] if name not in SERVERS_IN_PLAN]
    for name in SERVERS_IN_PLAN:
        plan["properties"][name]["description"] += " Needed with a model, left out beside a program."

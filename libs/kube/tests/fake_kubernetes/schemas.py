"""Validation as by the API server: the official schemas of its own kinds, the structural schema of custom ones."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate import utils as official
from referencing import Registry, Resource

from .merging import Object

VERSION = "1.36"


class Invalid(Exception):
    """An invalid object; the text names the field."""


def check(one: Object) -> None:
    """Check an object against the official schema of its kind, strictly. Raises Invalid."""
    name = one["metadata"]["name"]
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
        raise Invalid(f"metadata.name: {name!r} is no lowercase RFC 1123 subdomain")
    _raise_first(_official(one["kind"].lower(), one["apiVersion"].replace("/", "-").replace(".k8s.io", "")), one)


@cache
def _official(kind: str, api_version: str) -> Any:
    exact = next(each for each in reversed(official.all_versions()) if each.startswith(VERSION))
    folder = f"kubernetes-json-schema/v{exact}-local-strict"
    schema = official.schema_contents(f"{folder}/{kind}-{api_version}.json", exact)
    definitions = Resource.from_contents(official.schema_contents(f"{folder}/_definitions.json", exact))
    registry = definitions @ (Resource.from_contents(schema) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


def check_custom(schema: Object, one: Object) -> Object:
    """Check a custom resource against its schema; return it without unknown fields. Raises Invalid."""
    pruned = prune(schema, one)
    _raise_first(jsonschema.Draft4Validator(_plain(schema)), pruned)
    return pruned


def prune(schema: Object, value: Any) -> Any:
    """Drop the fields that the schema does not have, as the server does."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return copy.deepcopy(value)
    if isinstance(value, list):
        return [prune(schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties")
    if known is None:
        more = schema.get("additionalProperties")
        return {key: prune(more, each) for key, each in value.items()} if isinstance(more, dict) else {}
    return {key: prune(known[key], each) for key, each in value.items() if key in known}


def _plain(schema: Any) -> Any:
    """Translate OpenAPI's ``nullable`` and Kubernetes' int-or-string to JSON Schema."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _plain(value) for key, value in schema.items() if not key.startswith("x-")}
    if schema.get("x-kubernetes-int-or-string"):
        kinds = ("integer", "string", "null") if schema.get("nullable") is True else ("integer", "string")
        return {"anyOf": [{"type": kind} for kind in kinds]}
    if schema.get("nullable") is True and isinstance(schema.get("type"), str):
        result["type"] = [schema["type"], "null"]
    return result


def _raise_first(validator: Any, one: Object) -> None:
    error = jsonschema.exceptions.best_match(validator.iter_errors(one))
    if error is not None:
        raise Invalid(f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}")

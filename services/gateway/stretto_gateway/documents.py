"""A job specification out of a request body: bounded, JSON or YAML, without surprises."""

from __future__ import annotations

import json
from typing import Any

import yaml
from starlette.requests import Request
from stretto_wire import JobSpec, WireError

from .problems import Problem

JSON_TYPES = frozenset({"application/json", "application/problem+json", "text/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
ANY_TYPES = frozenset({"", "text/plain", "application/octet-stream"})


class _Loader(yaml.SafeLoader):
    """Safe, and without aliases: a few of them make a document of gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise Problem(422, "bad-job", "YAML aliases are not accepted", field="(body)", value="*alias",
                          remedy="write the value out")  # fmt: skip
        return super().compose_node(parent, index)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body, read no further than the limit. Raises Problem 413."""
    told = request.headers.get("content-length", "")
    too_large = Problem(413, "too-large", f"the body is larger than {limit_bytes} bytes", field="(body)",
                        value=told and f"{told} bytes", remedy=f"at most {limit_bytes} bytes")  # fmt: skip
    if told.isdigit() and int(told[:18]) > limit_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise too_large
    return bytes(body)


def parse_document(body: bytes, content_type: str) -> object:
    """JSON or YAML (a superset of it, when the type says neither). Raises Problem 415 or 422."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES | YAML_TYPES | ANY_TYPES:
        raise Problem(415, "bad-type", f"content type {kind[:80]} is not accepted", field="Content-Type", value=kind,
                      remedy="application/json or application/yaml")  # fmt: skip
    try:
        text = body.decode()
        return json.loads(text) if kind in JSON_TYPES else yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300]
    except RecursionError:
        reason = "nested too deeply"
    form = "JSON" if kind in JSON_TYPES else "YAML"
    raise Problem(422, "bad-document", f"the body is not {form}: {reason}", field="(body)",
                  value=body[:80].decode(errors="replace"),
                  remedy=f"a job specification in {form}; see `stretto schema`")  # fmt: skip


def parse_job(document: object) -> JobSpec:
    """Raises Problem 422 that names field, value and remedy."""
    try:
        return JobSpec.parse(document)
    except WireError as error:
        raise Problem.of_wire(error) from error
    except RecursionError as error:
        raise Problem(422, "bad-job", "nested too deeply", field="(body)", remedy="see `stretto schema`") from error

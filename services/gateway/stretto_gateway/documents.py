"""A job specification out of a request body: bounded, JSON or YAML, without surprises."""

from __future__ import annotations

from starlette.requests import Request
from stretto_wire import JobSpec, WireError
from stretto_wire.jobfile import read_job

from .problems import Problem

JSON_TYPES = frozenset({"application/json", "application/problem+json", "text/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
ANY_TYPES = frozenset({"", "text/plain", "application/octet-stream"})


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


def parse_job(body: bytes, content_type: str) -> JobSpec:
    """JSON or YAML (a superset of it, when the type says neither). Raises Problem 415, or 422 with every finding."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES | YAML_TYPES | ANY_TYPES:
        raise Problem(415, "bad-type", f"content type {kind[:80]} is not accepted", field="Content-Type", value=kind,
                      remedy="application/json or application/yaml")  # fmt: skip
    try:
        return read_job(body.decode(), "JSON" if kind in JSON_TYPES else "YAML")
    except UnicodeDecodeError as error:
        raise Problem(422, "bad-job", f"the body is not UTF-8: {error.reason}", field="(document)",
                      value=f"byte {error.start}", remedy="text in UTF-8") from error  # fmt: skip
    except WireError as error:
        raise Problem.of_wire(error) from error

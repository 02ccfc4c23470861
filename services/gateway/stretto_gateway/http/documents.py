"""Specifications of jobs in request bodies, as JSON or YAML."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from stretto_wire import JobSpec, WireError
from stretto_wire.jobspec.jobfile import read_job

from ..problems import Problem

JSON_TYPES = frozenset({"application/json", "application/problem+json", "text/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
ANY_TYPES = frozenset({"", "text/plain", "application/octet-stream"})


class JobParser:
    """Parser of specifications in threads, one at a time for each caller: 128 KB of YAML take more than a second."""

    def __init__(self) -> None:
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def parse(self, caller: str, body: bytes, content_type: str) -> JobSpec:
        """Parse a body of a caller as ``parse_job`` does."""
        lock = self._busy.setdefault(caller, asyncio.Lock())
        async with lock:
            return await asyncio.to_thread(parse_job, body, content_type)


def parse_job(body: bytes, content_type: str) -> JobSpec:
    """Parse a specification as JSON or, by default, as YAML. Raises Problem 415, or 422 with every finding."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES | YAML_TYPES | ANY_TYPES:
        raise Problem(
            415,
            "bad-type",
            f"content type {kind[:80]} is not accepted",
            field="Content-Type",
            value=kind,
            remedy="application/json or application/yaml",
        )
    try:
        return read_job(body.decode(), "JSON" if kind in JSON_TYPES else "YAML")
    except UnicodeDecodeError as error:
        raise Problem(
            422,
            "bad-job",
            f"the body is not UTF-8: {error.reason}",
            field="(document)",
            value=f"byte {error.start}",
            remedy="text in UTF-8",
        ) from error
    except WireError as error:
        raise Problem.of_wire(error) from error

"""Answers as typed values. Fields that a newer gateway added are ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from stretto_wire import JobSpec, WireError
from stretto_wire.codec import adapter_of

from ..errors import Unusable
from ..protocol.connection import Request, Steps
from ..protocol.exchange import exchange

T = TypeVar("T")
Specification = JobSpec | Mapping[str, Any] | Path | str
"""A job: as an object, as a mapping, as the path of a file, or as text. Text has a line feed or is JSON."""


def read(kind: type[T], content: bytes | str) -> T:
    """Return an answer as a value of this type. Raises Unusable."""
    try:
        return adapter_of(kind).validate_json(content, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "(document)"
        text = f"an answer cannot be read as {kind}: {where}: {first['msg']}; is the gateway of another version?"
        raise Unusable(text) from None


def asked(kind: type[T], request: Request) -> Steps[T]:
    """Send a request; return its answer as a value of this type."""
    answer = yield from exchange(request)
    return read(kind, answer.content)


def promoted(kind: type[T], record: Any) -> T:
    """Return a record as one of a class that adds methods, and fields with a default."""
    return kind(*(getattr(record, one.name) for one in fields(record)))


def text_of(spec: Specification) -> str:
    """Return a specification as YAML or JSON. The gateway checks it. Raises Unusable."""
    if isinstance(spec, JobSpec):
        return spec.model_dump_json(exclude_unset=True)
    if isinstance(spec, Mapping):
        try:
            return json.dumps(spec)
        except (TypeError, ValueError) as error:
            raise Unusable(f"the specification is no JSON: {error}; give plain values, or a JobSpec") from None
    if isinstance(spec, str) and ("\n" in spec or spec.lstrip().startswith("{")):
        return spec
    try:
        return Path(spec).read_text(encoding="utf-8")
    except OSError as error:
        raise Unusable(f"cannot read {spec}: {error.strerror}; text of a job has a line feed") from None
    except UnicodeDecodeError as error:
        raise Unusable(f"{spec} is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from None


def with_name(text: str, name: str | None) -> str:
    """Return a specification under another name, as JSON. Raises Unusable for YAML that cannot be read."""
    if name is None:
        return text
    try:
        return json.dumps({**json.loads(text), "name": name})
    except (ValueError, TypeError):
        pass
    try:
        from stretto_wire.jobspec.jobfile import read_job

        return json.dumps({**read_job(text).model_dump(mode="json", exclude_unset=True), "name": name})
    except ImportError:
        raise Unusable("another name for a job in YAML needs pyyaml: pip install stretto-client[files]") from None
    except WireError as error:
        raise Unusable(str(error)) from None

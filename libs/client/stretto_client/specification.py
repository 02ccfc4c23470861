"""A job's specification as it is sent: from an object, a mapping, a file or text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto_wire import JobSpec, WireError, given_file

from .errors import Unusable

Specification = JobSpec | Mapping[str, Any] | Path | str
"""A job: as an object, as a mapping, as the path of a file, or as text. Text has a line feed or is JSON."""


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
        return given_file.text_of(given_file.read_given(spec, given_file.JOB_BYTES))
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

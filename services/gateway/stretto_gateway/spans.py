"""Spans of a job's trace, from the files of services and pods of this machine; elsewhere a collector has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

SPANS_MAX = 20_000
JOB = "stretto.job"
"""Attribute of every span of a job. A submitter chooses the trace of a job, and could name another job's."""


def spans_of(folder: Path, job: str, trace_id: str) -> list[dict[str, Any]]:
    """Return the spans of a job in its trace, at most ``SPANS_MAX``, from the state folder of an installation."""
    return list(islice(_spans(folder, job, trace_id), SPANS_MAX))


def _spans(folder: Path, job: str, trace_id: str) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "spans").rglob("*.jsonl*")):
        try:
            with path.open(errors="replace") as lines:
                for span in (_parsed(line) for line in lines if trace_id in line):
                    if span.get("trace_id") == trace_id and (span.get("attributes") or {}).get(JOB) == job:
                        yield span
        except OSError:  # renamed or removed meanwhile
            continue


def _parsed(line: str) -> dict[str, Any]:
    """Return the span in a line, empty if the line is torn."""
    try:
        span = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", span) if isinstance(span, dict) else {}

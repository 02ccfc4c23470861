"""Spans of a job's trace, from the files of services and pods of this machine (:mod:`.collector` has the others).

A pod may write anything into its job's folder. So only that folder is read for the job, only regular files, within
bounds, and only spans whose fields have the types that Stretto writes.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, cast

SPANS_MAX = 20_000
FILES_MAX = 4096
"""Number of entries of a job's folder that are read."""
FILE_BYTES_MAX = 64 << 20
LINE_BYTES_MAX = 64 << 10
FOLDER_BYTES_MAX = 512 << 20
"""Bound of the bytes that are read of a job's folder. The bounds are above what Stretto's own files have (taste)."""
JOB = "stretto.job"
"""Attribute that every span of a job has. A submitter chooses the trace of a job, and could choose another job's."""
_NUMBERS = ("start_s", "end_s")
_TEXTS = ("trace_id", "span_id", "name")
_TEXTS_OR_NONE = ("parent_id", "service", "error")


def spans_of(folder: Path, job: str, trace_id: str) -> list[dict[str, Any]]:
    """Return the spans of a job in its trace, at most ``SPANS_MAX``, from the state folder of an installation."""
    return list(islice(_spans(folder, job, trace_id), SPANS_MAX))


def _spans(folder: Path, job: str, trace_id: str) -> Iterator[dict[str, Any]]:
    sought = trace_id.encode()
    own = folder / "spans"
    for place, bytes_max in ((own, None), (own / job, FOLDER_BYTES_MAX)):
        for line in _lines(place, bytes_max):
            span = _parsed(line) if sought in line else None
            if span is not None and span["trace_id"] == trace_id and span["attributes"].get(JOB) == job:
                yield span


def _lines(folder: Path, bytes_max: int | None) -> Iterator[bytes]:
    """Yield the lines of the span files right in a folder. ``bytes_max`` is None for files that only services write."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # no pod has written a span
        return
    try:
        with os.scandir(opened) as entries:
            taken = islice(entries, None if bytes_max is None else FILES_MAX)
            names = sorted(entry.name for entry in taken if ".jsonl" in entry.name)
        for name in names:
            for line in _lines_of(name, opened, sys.maxsize if bytes_max is None else min(bytes_max, FILE_BYTES_MAX)):
                if bytes_max is not None:
                    bytes_max -= len(line)
                yield line
    finally:
        os.close(opened)


def _lines_of(name: str, folder: int, bytes_max: int) -> Iterator[bytes]:
    """Yield the lines of a regular file. A line that is too long comes in pieces, none of which is a span."""
    try:  # no link is followed, and no pipe is waited for
        file = open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb")  # noqa: SIM115
    except OSError:  # renamed or removed meanwhile, or no file
        return
    with closing(file):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return
        try:
            while bytes_max > 0 and (line := file.readline(min(LINE_BYTES_MAX, bytes_max))):
                bytes_max -= len(line)
                yield line
        except OSError:
            return


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the span in a line; None for a torn line or a span of an unexpected form."""
    try:
        return span_of(json.loads(line))
    except (ValueError, RecursionError):
        return None


def span_of(found: Any) -> dict[str, Any] | None:
    """Return the fields of a span that Stretto writes; None if a field is missing or has another type."""
    try:
        if not isinstance(found, dict) or not _is_span(cast("dict[str, Any]", found)):
            return None
        span = {name: found.get(name) for name in (*_TEXTS, *_TEXTS_OR_NONE, *_NUMBERS)}
        span["attributes"] = found.get("attributes") or {}
        json.dumps(span, ensure_ascii=False).encode()  # a lone surrogate cannot be sent as UTF-8
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", span)


def _is_span(found: dict[str, Any]) -> bool:
    attributes = found.get("attributes") or {}
    return (
        all(isinstance(found.get(name), str) for name in _TEXTS)
        and all(isinstance(found.get(name), str | None) for name in _TEXTS_OR_NONE)
        and all(isinstance(found.get(name), int | float) and _is_plain(found[name]) for name in _NUMBERS)
        and isinstance(attributes, dict)
        and all(map(_is_attribute, cast("dict[str, Any]", attributes).values()))
    )


def _is_attribute(value: Any) -> bool:
    return all(map(_is_plain, cast("list[Any]", value))) if isinstance(value, list) else _is_plain(value)


def _is_plain(value: Any) -> bool:
    return isfinite(value) if isinstance(value, float) else isinstance(value, str | int | None)

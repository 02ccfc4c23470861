"""The wire protocol of Stretto: subjects, JSON, CloudEvents headers and the job file.

``subject_of(message)`` returns the subject of a message of :mod:`stretto_messages`; ``parse(subject, data)`` returns
the message that arrived on a subject. ``parse`` raises only :class:`WireError`, which names field, value and remedy;
``subject_of`` also raises KeyError for a reply, which has no subject of its own.

Names are loaded when they are used: the types of the REST interface need no channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codec import decode as decode
    from .codec import document_of as document_of
    from .codec import encode as encode
    from .contract.registry import CHANNELS as CHANNELS
    from .contract.registry import DEAD_LETTERS as DEAD_LETTERS
    from .contract.registry import EVENTS_KEPT_S as EVENTS_KEPT_S
    from .contract.registry import PARTITIONS as PARTITIONS
    from .contract.registry import PATTERN_OF_STREAM as PATTERN_OF_STREAM
    from .contract.registry import STORED_AS as STORED_AS
    from .contract.registry import STREAM as STREAM
    from .contract.registry import SUBJECTS_OF_STREAM as SUBJECTS_OF_STREAM
    from .contract.registry import SUBJECTS_OF_TELEMETRY as SUBJECTS_OF_TELEMETRY
    from .contract.registry import TELEMETRY as TELEMETRY
    from .contract.registry import TELEMETRY_KEPT_PER_POD as TELEMETRY_KEPT_PER_POD
    from .contract.registry import TELEMETRY_KEPT_S as TELEMETRY_KEPT_S
    from .contract.registry import Channel as Channel
    from .contract.registry import Input as Input
    from .contract.registry import channel_at as channel_at
    from .contract.registry import channel_of as channel_of
    from .contract.registry import inputs_of as inputs_of
    from .contract.registry import parse as parse
    from .contract.registry import partition_of as partition_of
    from .contract.registry import requests_of as requests_of
    from .contract.registry import subject_of as subject_of
    from .contract.submission import JobSubmitted as JobSubmitted
    from .errors import WireError as WireError
    from .jobspec.spec import JobSpec as JobSpec

_PLACES = {
    "codec": ("decode", "document_of", "encode"),
    "contract.registry": (
        "CHANNELS",
        "DEAD_LETTERS",
        "EVENTS_KEPT_S",
        "PARTITIONS",
        "PATTERN_OF_STREAM",
        "STORED_AS",
        "STREAM",
        "SUBJECTS_OF_STREAM",
        "SUBJECTS_OF_TELEMETRY",
        "TELEMETRY",
        "TELEMETRY_KEPT_PER_POD",
        "TELEMETRY_KEPT_S",
        "Channel",
        "Input",
        "channel_at",
        "channel_of",
        "inputs_of",
        "parse",
        "partition_of",
        "requests_of",
        "subject_of",
    ),
    "contract.submission": ("JobSubmitted",),
    "errors": ("WireError",),
    "jobspec.spec": ("JobSpec",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _PLACES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The wire protocol of Stretto: subjects, JSON, CloudEvents headers and the job file.

``subject_of(message)`` returns the subject of a message of :mod:`stretto_messages`; ``parse(subject, data)`` returns
the message that arrived on a subject. ``parse`` raises only :class:`WireError`, which names field, value and remedy;
``subject_of`` also raises KeyError for a reply, which has no subject of its own.
"""

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

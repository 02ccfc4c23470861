"""The wire protocol of Stretto: every message and subject, once.

``subject_of(message)`` says where a message goes, ``parse(subject, data)`` what has arrived; both raise only
:class:`WireError`, which names field, value and remedy.
"""

from .base import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from .base import Message as Message
from .base import Record as Record
from .books import *  # noqa: F403
from .errors import WireError as WireError
from .events import *  # noqa: F403
from .refusals import ERROR_HEADER as ERROR_HEADER
from .refusals import Refusal as Refusal
from .refusals import Refused as Refused
from .registry import CHANNELS as CHANNELS
from .registry import DEAD_LETTERS as DEAD_LETTERS
from .registry import EVENTS_KEPT_S as EVENTS_KEPT_S
from .registry import PARTITIONS as PARTITIONS
from .registry import PATTERN_OF_STREAM as PATTERN_OF_STREAM
from .registry import STORED_AS as STORED_AS
from .registry import STREAM as STREAM
from .registry import SUBJECTS_OF_STREAM as SUBJECTS_OF_STREAM
from .registry import TELEMETRY_KEPT_S as TELEMETRY_KEPT_S
from .registry import Channel as Channel
from .registry import channel_at as channel_at
from .registry import channel_of as channel_of
from .registry import decode as decode
from .registry import encode as encode
from .registry import parse as parse
from .registry import partition_of as partition_of
from .registry import subject_of as subject_of
from .requests import *  # noqa: F403
from .spec import JobSpec as JobSpec
from .telemetry import *  # noqa: F403
from .values import *  # noqa: F403

"""Inboxes for replies: each identity may receive only below its own."""

from __future__ import annotations

import re

IMPORTED = "_R_.*.*"
"""Replies to requests from another account: the server writes such a subject in the place of the caller's, and lets no
client name one."""

_INBOX = re.compile(r"_INBOX(\.[^\s.*>]+){2,16}|_R_(\.[0-9A-Za-z]+){2}")


def inbox_of(user: str) -> str:
    """Return the inbox of a service, the command, or an external tool."""
    return f"_INBOX.{user}"


def inbox_of_pod(job: str, pod: str) -> str:
    """Return the inbox of one pod. It includes the job, since jobs share names of pods."""
    return f"_INBOX.pod.{job}.{pod}"


def is_inbox_of_caller(reply: str) -> bool:
    """Return whether a request may be answered at ``reply``.

    The server checks nobody's right to name a reply subject: an answer elsewhere would be written with the rights of
    whoever answers. A pod's own inbox arrives only where everybody shares one account: a server without keys.
    """
    return _INBOX.fullmatch(reply) is not None

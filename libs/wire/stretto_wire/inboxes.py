"""Inboxes for replies: each identity may receive only below its own."""

from __future__ import annotations

import re

_INBOX = re.compile(r"_INBOX(\.[^\s.*>]+){2,16}")


def inbox_of(user: str) -> str:
    """Return the inbox of a service, the command, or an external tool."""
    return f"_INBOX.{user}"


def inbox_of_pod(job: str, pod: str) -> str:
    """Return the inbox of one pod. It includes the job, since jobs share names of pods."""
    return f"_INBOX.pod.{job}.{pod}"


def is_inbox_of_caller(reply: str, job: str) -> bool:
    """Return whether a request about ``job`` may be answered at ``reply``.

    The server checks nobody's right to name a reply subject: an answer elsewhere would be written with the rights of
    whoever answers. A pod's request is about its own job, so the answer to a pod goes to a pod of this job.
    """
    if _INBOX.fullmatch(reply) is None:
        return False
    return not reply.startswith("_INBOX.pod.") or reply.startswith(f"_INBOX.pod.{job}.")

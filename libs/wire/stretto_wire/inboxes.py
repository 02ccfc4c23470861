"""Inboxes for replies: each identity may receive only below its own."""

from __future__ import annotations


def inbox_of(user: str) -> str:
    """Return the inbox of a service, the command, or an external tool."""
    return f"_INBOX.{user}"


def inbox_of_pod(job: str, pod: str) -> str:
    """Return the inbox of one pod. It includes the job, since jobs share names of pods."""
    return f"_INBOX.pod.{job}.{pod}"

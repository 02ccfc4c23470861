"""Where answers go: each identity receives only below an inbox of its own."""

from __future__ import annotations


def inbox_of(user: str) -> str:
    """Of a service, the command, or a tool outside."""
    return f"_INBOX.{user}"


def inbox_of_pod(job: str, pod: str) -> str:
    """Of one pod: names of pods repeat from job to job."""
    return f"_INBOX.pod.{job}.{pod}"

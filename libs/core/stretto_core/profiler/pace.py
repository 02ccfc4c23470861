"""The pace of telemetry: all pods of an installation together send a bounded number of reports."""

from __future__ import annotations

SHORTEST_S = 1.0
LONGEST_S = 60.0
"""A window of a profile spans 1.5 reports: a straggler is named after two, here 180 s."""


def report_interval_s(pods: int, reports_per_s: float) -> float:
    """Return the seconds between two reports of each of ``pods``: ``pods / reports_per_s`` within bounds."""
    return min(LONGEST_S, max(SHORTEST_S, pods / reports_per_s))

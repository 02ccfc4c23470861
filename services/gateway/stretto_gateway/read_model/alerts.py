"""Alerts that the gateway can judge by itself. Prometheus judges these and all others (charts/stretto/alerts.yaml).

The conditions are the conditions of those rules without `for`: a person who looks wants to see what begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stretto_bus.reading.damage import Damage
from stretto_messages.base import counted
from stretto_wire.contract.registry import PARTITIONS
from stretto_wire.rest.answers import AlertName, AlertView, ServiceView
from stretto_wire.rest.views import JobView

from .summaries import checkpoint_is_late, spilling

LATE = "it trains without a checkpoint for three times its interval"
FILLING, FULL = 0.7, 0.9
"""Used shares of a stream above which its two alerts fire."""


def of_services(services: Iterable[ServiceView]) -> Iterator[AlertView]:
    """Yield the alerts about services that every installation runs."""
    for one in services:
        if not one.replicas:
            yield AlertView(alert="StrettoServiceGone", subject=one.service, detail="no replica answers")
        elif one.partitions < PARTITIONS:
            detail = f"{PARTITIONS - one.partitions} of {PARTITIONS} partitions have no owner; their jobs stand still"
            yield AlertView(alert="StrettoPartitionWithoutOwner", subject=one.service, detail=detail)


def of_streams(shares: Mapping[str, float]) -> Iterator[AlertView]:
    """Yield the alerts about streams that are almost full."""
    for stream, share in shares.items():
        if share > FILLING:
            alert: AlertName = "StrettoStreamFull" if share > FULL else "StrettoStreamFilling"
            yield AlertView(alert=alert, subject=stream, detail=f"the stream is {share:.0%} full")


def of_bus(refuses: str) -> Iterator[AlertView]:
    """Yield the alert about a bus that stores nothing, with the reason ``refuses``; nothing where that is empty."""
    if refuses:
        yield AlertView(alert="StrettoBusStoresNothing", subject="bus", detail=refuses)


def of_damages(damages: Mapping[str, Damage], told_all: bool) -> Iterator[AlertView]:
    """Yield the alerts about streams with messages that cannot be read. Subjects name jobs of all teams, so only those
    are ``told_all`` who read all teams' jobs."""
    for stream, damage in damages.items():
        detail = str(damage) if told_all else damage.place
        yield AlertView(alert="StrettoStreamDamaged", subject=stream, detail=detail)


def of_jobs(views: Iterable[JobView], now_s: float) -> Iterator[AlertView]:
    """Yield the alerts about jobs."""
    for view in views:
        if checkpoint_is_late(view, now_s):
            detail = view.reason if view.status == "finishing" else LATE
            yield AlertView(alert="StrettoCheckpointLate", subject=view.name, detail=detail)
        for server in spilling(view):
            if server.spill_fault:
                detail = f"{server.pod} has no room for its rows: {server.spill_fault}"
                yield AlertView(alert="StrettoSpillFault", subject=view.name, detail=detail)
            elif view.spec.resources.ps.spill != "auto":  # there it is what was decided
                detail = f"{server.pod} has {counted(server.cold_rows, 'row')} on its disk for lack of memory"
                yield AlertView(alert="StrettoServerSpilling", subject=view.name, detail=detail)

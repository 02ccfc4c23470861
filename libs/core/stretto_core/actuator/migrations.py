"""Migrations of parameters: each wanted layout has a number, and late observations of an older one change nothing."""

from __future__ import annotations

from stretto_messages.actuator import MigrationFinished, MigrationStarted

from stretto_core.actuator import servers
from stretto_core.actuator.observations import MovesFinished, MovesStarted
from stretto_core.actuator.state import ActuatorState, Facts, Migration


def started(state: ActuatorState, event: MovesStarted, now: float) -> Facts:
    """Publish that parameters begin to move."""
    if state.layout != "ready" or state.migration is not None or not _is_wanted(state, event.number):
        return []
    assert state.rebalance is not None
    state.migration = Migration(state.rebalance, now)
    fact = MigrationStarted(
        job=state.job,
        plan_version=state.plan_version,
        cause=state.rebalance,
        sources=event.sources,
        destinations=event.destinations,
        buckets=event.buckets,
    )
    return [fact]


def finished(state: ActuatorState, event: MovesFinished, now: float) -> Facts:
    """Publish that the wanted layout is reached, and stop the servers that own nothing any more."""
    if state.layout != "ready" or not _is_wanted(state, event.number):
        return []
    facts: Facts = []
    if state.migration is not None:
        fact = MigrationFinished(
            job=state.job,
            plan_version=state.plan_version,
            buckets=event.buckets,
            moved_bytes=event.moved_bytes,
            took_s=now - state.migration.started_at_s,
            longest_freeze_s=event.longest_freeze_s,
        )
        facts.append(fact)
    state.rebalance = None
    state.migration = None
    drained = [pod for pod in state.pods.values() if pod.leaving]
    for pod in drained:
        pod.stop()
    if drained:
        facts.append(servers.changed(state))
    return facts


def _is_wanted(state: ActuatorState, number: int) -> bool:
    """Return True if an observation of layout ``number`` is about the one that is wanted now."""
    return state.rebalance is not None and number == state.rebalance_number

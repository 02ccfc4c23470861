"""The checks of a history by their ids, which ``PROMISES.md`` cites as ``sim:<id>``."""

from __future__ import annotations

from enum import StrEnum


class Check(StrEnum):
    """Ids of checks, with when each is checked and what has to hold. A line about what broke begins with its id."""

    FENCE = "fence"
    """Each stored message: whoever owned a partition before stores nothing after its successor's fence"""
    ONCE = "once"
    """Each stored message: no output is stored twice, and no job is completed twice"""
    LETTERS = "letters"
    """Each stored message, and at the end: a service sets aside once what it cannot read, and nothing else"""
    LEASE = "lease"
    """Each heartbeat: it is answered ``stale`` when another worker has the lease"""
    PLANS = "plans"
    """Each decision: the last plans of all jobs fit into the cluster together"""
    PODS = "pods"
    """Each launch and resize: the pods that live fit into the cluster"""
    COLUMNS = "columns"
    """Each move: a column is taken where it is"""
    CHECKPOINT = "checkpoint"
    """Each checkpoint: it is complete once, each column in one image, and fails only where more than services die"""
    FILES = "files"
    """At the end: no job leaves more checkpoints in the store than it keeps"""
    BOOKS = "books"
    """At the end: every column has every sample of every epoch once"""
    CLOSED = "closed"
    """At the end: the product itself closes the books of every job with nothing lost and nothing repeated"""
    REPLAY = "replay"
    """At the end: every decision comes out of the stream again, byte for byte"""
    EXPIRY = "expiry"
    """At the end: no lease expires where nothing happens to workers"""
    ANSWERED = "answered"
    """At the end: a request is answered within ten seconds without a fault, where no server lags"""
    LIVENESS = "liveness"
    """At the end: every job ends, at most 240 s after the last fault"""
    POWER = "power"
    """At the end: a job that comes after a loss of power is trained, every sample once, whatever was lost before"""
    ERRORS = "errors"
    """At the end: there was no exception that nobody caught"""

"""Metrics and logs of one process."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import sys
from typing import TextIO, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from stretto_wire.surroundings import wall_s

AGES_EVERY_S = 0.01
KINDS = ("message", "request", "observation", "tick")


class Tally:
    """A counter without a lock, for the one thread that handles messages: a lock costs as much as a small machine."""

    __slots__ = ("_counter", "count")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.count = 0

    def settle(self) -> None:
        """Add the count since the last time to the Prometheus counter."""
        count, self.count = self.count, 0
        if count:
            self._counter.inc(count)


class Metrics:
    """The metrics of a replica, for Prometheus."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._tallies: list[Tally] = []
        self._next_age_s = 0.0
        labels = {"service": service}

        def counter(name: str, text: str, *extra: str) -> Counter:
            return Counter(f"stretto_{name}", text, ["service", *extra], registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"stretto_{name}", text, ["service"], registry=self.registry).labels(**labels)

        def tally(child: Counter) -> Tally:
            self._tallies.append(Tally(child))
            return self._tallies[-1]

        inputs = counter("inputs", "messages handled", "kind")
        self.inputs = {kind: tally(inputs.labels(service, kind)) for kind in KINDS}
        replayed = counter("replayed_inputs", "messages handled again after a takeover")
        self.replayed = tally(replayed.labels(**labels))
        self.outputs = tally(counter("outputs", "messages published").labels(**labels))
        self.suppressed = counter("outputs_suppressed", "outputs that a predecessor had published").labels(**labels)
        self.dead_letters = counter("dead_letters", "messages set aside", "reason")
        self.lost_keys = gauge("lost_keys", "jobs whose saved state is damaged: nothing is handled for them")
        self.unrenewed = gauge("bus_refuses", "1: the bus stores nothing, not even that this replica lives")
        self.no_way_back = gauge(
            "no_way_back_keys",
            "jobs whose snapshots the former version cannot continue, though the machine names a storage version",
        )
        unanswerable = counter("unanswerable_requests", "requests dropped: their reply subject is no inbox of a caller")
        self.unanswerable = unanswerable.labels(**labels)
        over_budget = counter("requests_over_budget", "requests told to ask again: their job has spent its budget")
        self.over_budget = over_budget.labels(**labels)
        missing = counter("missing_reports", "reports that were to be handled, and that their stream held no more")
        self.missing_reports = missing.labels(**labels)
        self.faults = counter("machine_faults", "exceptions out of a machine: bugs").labels(**labels)
        self.takeovers = counter("takeovers", "partitions taken").labels(**labels)
        self.refused = counter("refusals", "times that saved state was of a version that cannot be continued").labels(
            **labels
        )
        self.fenced = counter("fenced", "partitions lost to a newer owner").labels(**labels)
        self.snapshots = counter("snapshots", "snapshots written").labels(**labels)
        self.partitions = gauge("partitions", "partitions owned and live")
        self.stream_fullness = gauge("stream_fullness", "stored bytes over the stream's bound")
        self.replica_lag = Gauge(
            "stretto_stream_replica_lag",
            "entries of the stream's log that the replica on this server lacks; infinite: it is offline",
            ["service", "stream", "server"],
            registry=self.registry,
        )
        self.certificate_end = gauge(
            "certificate_end_seconds",
            "end of the certificate that NATS showed, seconds since the epoch; infinite without TLS",
        )
        self.certificate_end.set(math.inf)  # before the first connection no certificate is known, and none ends
        self.backlog = gauge("input_backlog", "messages stored and not handled yet")
        self.pauses = gauge("input_pauses", "times that the inputs of a partition owned now had to wait for us")
        self.lag_s = Histogram(
            "stretto_input_age_seconds",
            "from the server's storing a message to our handling it, of a hundred messages a second",
            ["service"],
            registry=self.registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30),
        ).labels(**labels)
        self.service = service

    def handling(self, stored_s: float) -> None:
        """Observe the age of a message that was stored at ``stored_s`` and is handled now."""
        now = wall_s()
        if now >= self._next_age_s:
            self._next_age_s = now + AGES_EVERY_S
            self.lag_s.observe(max(0.0, now - stored_s))

    def text(self) -> bytes:
        for tally in self._tallies:
            tally.settle()
        return generate_latest(self.registry)


class Lines(io.TextIOBase):
    """A stream of lines that are lost where they cannot be written: no service ends because its log's disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(line)
            self._stream.flush()
        return len(line)


def configure_logs(service: str, level: str) -> None:
    """JSON lines on stderr: time, level, event, service, and trace_id and job where a message is being handled."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=8)
            ),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, Lines(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of each request that a stranger sends wrongly

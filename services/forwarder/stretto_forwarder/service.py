"""The forwarder: one cursor and one course of retries for each endpoint, so that a dead one delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import time
from collections.abc import Mapping, Sequence

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from stretto_bus import BusFault
from stretto_bus.bus import Bus
from stretto_bus.reading.durable import Delivery, Durable
from stretto_runtime import Json
from stretto_runtime.process.health import Health
from stretto_runtime.spans.tracing import Tracing
from stretto_wire import WireError
from stretto_wire.contract.registry import STREAM

from stretto_forwarder import handlers
from stretto_forwarder.handlers import NotForwardable
from stretto_forwarder.mlflow import Mlflow
from stretto_forwarder.posting import Poster
from stretto_forwarder.retrying import Again, AttemptOutcome, Delivered, EndpointFailures, GiveUp, Stop
from stretto_forwarder.settings import EndpointTarget, ForwarderSettings, targets_of
from stretto_forwarder.tensorboard import Tensorboard
from stretto_forwarder.webhook import Webhook

NAME = "forwarder"
AGAIN_S = 1.0
LETTER_S = 30.0
STOPPED = "stopped"
URL = "url-sha256"
log = structlog.get_logger("stretto.forwarder")


class EndpointMetrics:
    """The metrics of each endpoint."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ["endpoint"]
        self.delivered = Counter("stretto_forwarder_delivered", "events delivered", labels, registry=registry)
        self.failures = Counter("stretto_forwarder_failures", "attempts that failed", labels, registry=registry)
        self.letters = Counter("stretto_forwarder_dead_letters", "events given up", labels, registry=registry)
        self.pending = Gauge("stretto_forwarder_pending", "events behind the current one", labels, registry=registry)
        self.stopped = Gauge("stretto_forwarder_stopped", "1: the endpoint answered 410", labels, registry=registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class EndpointLane:
    """Posts all events of one endpoint, in the order in which they were stored."""

    def __init__(
        self, bus: Bus, target: EndpointTarget, settings: ForwarderSettings, metrics: EndpointMetrics, tracing: Tracing
    ) -> None:
        """Raises SettingsFault."""
        self.name = target.endpoint.name
        self.state = "opening"
        self.last = ""
        self._bus = bus
        self._target = target
        self._metrics = metrics
        self._tracing = tracing
        self._poster = Poster(target.endpoint.url, settings.allow_networks, settings.ca, settings.timeout_s)
        self._sink: Webhook | Mlflow | Tensorboard = (
            Tensorboard(target)
            if target.endpoint.form == "tensorboard"
            else (Mlflow if target.endpoint.form == "mlflow" else Webhook)(target, self._poster)
        )
        self._silence_s = settings.silence_s
        self._look_s = settings.stream_look_s
        self._course = EndpointFailures(settings.retry_s, settings.retry_max_s, settings.give_up_s)
        place = target.endpoint.url or str(target.endpoint.folder)
        self._marks = {URL: hashlib.sha256(place.encode()).hexdigest()}
        metrics.stopped.labels(self.name).set(0)

    @property
    def report(self) -> Json:
        """The lane's part of /readyz."""
        return {"state": self.state, "last": self.last, "failing_since_s": self._course.failing_since_s}

    @property
    def _stopped(self) -> bool:
        return self.state == STOPPED

    async def run(self) -> None:
        """Post until cancelled, or until the endpoint answers that it is gone."""
        try:
            while not self._stopped:
                try:
                    await self._follow()
                except BusFault as fault:
                    log.warning("the cursor is opened again", endpoint=self.name, fault=str(fault))
                    self.state = "opening"
                    await asyncio.sleep(AGAIN_S)
        finally:
            await self._poster.close()

    async def _follow(self) -> None:
        endpoint = self._target.endpoint
        cursor_name = f"{NAME}-{self.name}"
        known = await Durable.known(self._bus, STREAM, cursor_name)
        marks: Mapping[str, str] = known["config"].get("metadata", {}) if known else {}
        if STOPPED in marks and marks.get(URL) == self._marks[URL]:
            self._stop(marks[STOPPED])
            return
        cursor = await Durable.open(
            self._bus,
            STREAM,
            cursor_name,
            handlers.pattern_of(endpoint),
            handlers.start_of(endpoint),
            self._marks,
            ack_wait_s=self._silence_s,
        )
        self.state = "forwarding"
        looking = asyncio.create_task(self._look(cursor_name))
        try:
            while not self._stopped:
                delivery = await cursor.next()
                self._metrics.pending.labels(self.name).set(delivery.pending)
                await self._handle(cursor, delivery)
        finally:
            looking.cancel()
            await cursor.close()

    async def _look(self, cursor_name: str) -> None:
        """Show the number of waiting events at intervals: while an endpoint fails, no delivery brings a new one."""
        while True:
            await asyncio.sleep(self._look_s)
            with contextlib.suppress(BusFault):
                if (known := await Durable.known(self._bus, STREAM, cursor_name)) is not None:
                    self._metrics.pending.labels(self.name).set(known["num_pending"])

    async def _handle(self, cursor: Durable, delivery: Delivery) -> None:
        settled = False
        try:
            async with delivery.in_progress():
                try:
                    if handlers.wanted(self._target.endpoint, delivery.stored.subject):
                        await self._deliver(cursor, delivery)
                except (NotForwardable, WireError) as error:
                    await self._set_aside(delivery, "refused", str(error))
                if not self._stopped:
                    await delivery.ack()
                    settled = True
        finally:
            if not settled:
                await delivery.nak()

    async def _deliver(self, cursor: Durable, delivery: Delivery) -> None:
        """Try until the event is delivered or given up, or the endpoint answers that it is gone."""
        while True:
            outcome = await self._attempt(delivery)
            self.last = outcome.reason
            decision = self._course.decide(outcome, time.time(), random.random)
            if isinstance(decision, Delivered):
                self._metrics.delivered.labels(self.name).inc()
                return
            self._metrics.failures.labels(self.name).inc()
            log.warning(
                "not delivered",
                endpoint=self.name,
                seq=delivery.stored.seq,
                reason=outcome.reason,
                then=type(decision).__name__,
                wait_s=getattr(decision, "wait_s", None),
            )
            match decision:
                case Again(wait_s):
                    await asyncio.sleep(wait_s)
                case GiveUp(reason):
                    await self._set_aside(delivery, "given-up", reason)
                    return
                case Stop(reason):
                    await cursor.note({**self._marks, STOPPED: reason})
                    self._stop(reason)
                    return

    async def _attempt(self, delivery: Delivery) -> AttemptOutcome:
        given = delivery.stored.headers
        attributes = {"stretto.job": delivery.stored.subject.rpartition(".")[2], "stretto.endpoint": self.name}
        what = f"post {given.get('ce-type', delivery.stored.subject)}"
        with self._tracing.sending(what, given.get("traceparent", ""), attributes) as sent:
            try:
                return await self._sink.send(delivery.stored, sent)
            except (NotForwardable, WireError):
                raise
            except Exception as error:  # what an endpoint answers, or a job measures, stops no other endpoint
                return AttemptOutcome(0, f"{type(error).__name__}: {error}")

    async def _set_aside(self, delivery: Delivery, reason: str, error: str) -> None:
        """Store the event in the dead letters. Raises BusFault if that failed; the event is then not done."""
        stored = delivery.stored
        headers = {
            "Nats-Msg-Id": f"dlq:{NAME}:{self.name}:{stored.seq}",
            "reason": reason,
            "error": error[:2000],
            "service": NAME,
            "endpoint": self.name,
            "seq": str(stored.seq),
        }
        subject = stored.subject.partition(".")[2]  # without the partition, as every dead letter
        await self._bus.store_surely(f"dlq.{subject}", stored.data, headers, LETTER_S)
        self._metrics.letters.labels(self.name).inc()
        log.error("dead letter", endpoint=self.name, subject=subject, seq=stored.seq, reason=reason, error=error[:500])

    def _stop(self, reason: str) -> None:
        self.state = STOPPED
        self.last = reason
        self._metrics.stopped.labels(self.name).set(1)
        log.error(
            "the endpoint answered 410 and is stopped; another url under its name starts it again",
            endpoint=self.name,
            reason=reason,
        )


class Forwarder:
    """Connects, serves health, and runs the lanes until it is asked to stop."""

    def __init__(self, settings: ForwarderSettings, targets: Sequence[EndpointTarget]) -> None:
        self._settings = settings
        self._targets = targets
        self._metrics = EndpointMetrics()
        self._lanes: list[EndpointLane] = []
        self._bus: Bus | None = None

    async def run(self, stop: asyncio.Event) -> None:
        settings = self._settings
        tracing = Tracing(NAME, settings.state_folder, settings.spans_bytes, settings.spans_per_s)
        health = Health(NAME, settings.state_folder, self.report, self._metrics.text)
        await health.start(settings.health_host, settings.health_port, settings.health_listener)
        working = asyncio.create_task(self._work(tracing))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait([working, stopping])
        await health.stop()
        if self._bus is not None:
            await self._bus.close()
        tracing.close()
        if not working.cancelled():
            working.result()

    async def _work(self, tracing: Tracing) -> None:
        self._bus = bus = await Bus.connect(self._settings.nats_url, self._settings.login(NAME), NAME)
        self._lanes = [EndpointLane(bus, target, self._settings, self._metrics, tracing) for target in self._targets]
        if not self._lanes:
            log.warning("no endpoints: set STRETTO_FORWARDER_ENDPOINTS_FILE")
        async with asyncio.TaskGroup() as lanes:
            for lane in self._lanes:
                lanes.create_task(lane.run(), name=lane.name)
            lanes.create_task(asyncio.Event().wait())

    def report(self) -> Json:
        """Return the answer of /readyz."""
        connected = self._bus is not None and self._bus.connected
        opened = len(self._lanes) == len(self._targets) and all(lane.state != "opening" for lane in self._lanes)
        return {
            "service": NAME,
            "pid": os.getpid(),
            "connected": connected,
            "ready": connected and opened,
            "endpoints": {lane.name: lane.report for lane in self._lanes},
        }


async def serve(settings: ForwarderSettings, stop: asyncio.Event) -> None:
    """Run until ``stop`` is set. Raises Fault."""
    await Forwarder(settings, targets_of(settings)).run(stop)

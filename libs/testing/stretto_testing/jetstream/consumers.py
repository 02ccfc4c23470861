"""A consumer of a JetStream server in memory: pushed to a subject, or pulled; with acknowledgements or without."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from stretto_testing.jetstream.streams import SECOND_NS, ApiRefusal, Kept, KeptStream
from stretto_testing.jetstream.subjects import Filter

PUMP_MESSAGES = 64
"""Messages that are delivered at once; then others have their turn."""
SILENT_BEATS = 3
"""Heartbeats without a subscriber after which a pushed consumer is removed."""


class Timer(Protocol):
    """A timer that may be cancelled."""

    def cancel(self) -> None: ...


class Host(Protocol):
    """The server that a consumer lives on."""

    chance: Random

    def now_ns(self) -> int:
        """Return the server's clock."""
        ...

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Do something later."""
        ...

    def soon(self, action: Callable[[], None]) -> None:
        """Do something as soon as everything is taken that has arrived with what is taken now."""
        ...

    def listens(self, subject: str) -> bool:
        """Return whether somebody has subscribed to ``subject``."""
        ...

    def deliver(self, to: str, subject: str, reply: str, block: bytes, data: bytes) -> None:
        """Send a message to the subscribers of ``to``, under its own ``subject``."""
        ...

    def forget(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        ...

    def leads(self, name: str) -> bool:
        """Return whether a stream has a leader."""
        ...


@dataclass(slots=True, eq=False)
class Pull:
    """A request for messages that is not satisfied. It ends at ``ends_ns``."""

    reply: str
    left: int
    ends_ns: int


class Consumer:
    """One consumer, with the sequences that it has ahead."""

    def __init__(self, host: Host, stream: KeptStream, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self.config = config
        self.stream = stream
        self.delivered = 0
        """Number of deliveries"""
        self.server_number = 0
        """The server of a cluster on which it lives"""
        self.is_stopped = False
        """The server is stopped, as by SIGSTOP."""
        self.ahead: deque[int] = deque()
        self._host = host
        self.filter = Filter(_filters(config))
        self._pulls: deque[Pull] = deque()
        self._unsettled: dict[int, tuple[int, Timer]] = {}
        """Sequence of a delivered message that waits for its acknowledgement -> its delivery's number, and the timer"""
        self._is_to_pump = False
        self._beating: Timer | None = None
        self._beats_alone = 0
        self._delivered_at_beat = -1
        self._is_gone = False
        self._last_stream_seq = 0
        stream.followers.add(self)
        self._begin()

    @property
    def is_durable(self) -> bool:
        """Return whether it outlives the server."""
        return "durable_name" in self.config

    def _begin(self) -> None:
        policy = self.config.get("deliver_policy", "all")
        if policy == "all":
            self.ahead.extend(self.stream.matching(self.filter.takes, 1))
        elif policy == "by_start_sequence":
            self.ahead.extend(self.stream.matching(self.filter.takes, int(self.config["opt_start_seq"])))
        elif policy == "last_per_subject":
            self.ahead.extend(self.stream.newest_of_each(self.filter.takes))
        elif policy != "new":
            raise ApiRefusal(10025, f"deliver_policy {policy!r} is not simulated")
        self._pump_later()
        if "idle_heartbeat" in self.config:
            self._beat_later()

    def info(self) -> dict[str, Any]:
        """Return what ``CONSUMER.INFO`` and ``CONSUMER.CREATE`` answer."""
        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "config": self.config,
            "delivered": {"consumer_seq": self.delivered, "stream_seq": self._last_stream_seq},
            "num_ack_pending": len(self._unsettled),
            "num_pending": len(self.ahead),
        }

    def close(self) -> None:
        """Deliver nothing more."""
        self._is_gone = True
        self.stream.followers.remove(self)
        for timer in (self._beating, *(timer for _, timer in self._unsettled.values())):
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Go on after a stop of the server."""
        self.is_stopped = False
        self._pump_later()

    def stored(self, kept: Kept) -> None:
        """Deliver a new message later."""
        self.ahead.append(kept.seq)
        self._pump_later()

    def removed(self, kept: Kept) -> None:
        """Deliver a message that is gone no more."""
        if self.ahead and self.ahead[0] <= kept.seq <= self.ahead[-1] and kept.seq in self.ahead:
            self.ahead.remove(kept.seq)
        if (unsettled := self._unsettled.pop(kept.seq, None)) is not None:
            unsettled[1].cancel()

    # delivering ------------------------------------------------------------------------------------------------

    def _pump_later(self) -> None:
        if self.ahead and not self._is_to_pump and not self._is_gone:
            self._is_to_pump = True
            self._host.soon(self._pump)

    def _pump(self) -> None:
        self._is_to_pump = False
        for _ in range(PUMP_MESSAGES):
            if self._is_gone or not self.ahead or (to := self._room()) is None:
                return
            self._deliver(self.ahead.popleft(), to)
        self._pump_later()

    def _room(self) -> str | None:
        """Return where the next message goes; None: nobody takes one now."""
        if self.is_stopped:
            return None
        if "deliver_subject" in self.config:
            to = str(self.config["deliver_subject"])
            return to if self._host.listens(to) else None
        most = int(self.config.get("max_ack_pending", 0))
        if self.config.get("ack_policy") == "explicit" and 0 < most <= len(self._unsettled):
            return None
        while self._pulls:
            pull = self._pulls[0]
            if pull.left > 0 and pull.ends_ns > self._host.now_ns() and self._host.listens(pull.reply):
                pull.left -= 1
                if not pull.left:
                    self._pulls.popleft()
                return pull.reply
            self._pulls.popleft()
        return None

    def _deliver(self, seq: int, to: str) -> None:
        kept = self.stream.messages[seq]
        self.delivered += 1
        self._last_stream_seq = seq
        number = self.delivered
        reply = f"$JS.ACK.{self.stream.name}.{self.name}.1.{seq}.{number}.{kept.time_ns}.{len(self.ahead)}"
        if self.config.get("ack_policy") == "explicit":
            self._await_ack(seq, number)
        data = b"" if self.config.get("headers_only") else kept.data
        self._host.deliver(to, kept.subject, reply, kept.block, data)

    def _await_ack(self, seq: int, number: int) -> None:
        wait_s = int(self.config.get("ack_wait", 30 * SECOND_NS)) / 1e9
        self._unsettled[seq] = number, self._host.after(wait_s, lambda: self._again(seq))

    def _again(self, seq: int) -> None:
        """Deliver once more what was not acknowledged in time, or was given back."""
        _, timer = self._unsettled.pop(seq)
        timer.cancel()
        self.ahead.appendleft(seq)
        self._pump_later()

    def settled(self, seq: int, number: int, what: bytes) -> None:
        """Take an answer to a delivery: done, given back, or still in progress."""
        if seq not in self._unsettled or self._unsettled[seq][0] != number:
            return
        if what.startswith(b"-NAK"):
            self._again(seq)
            return
        self._unsettled.pop(seq)[1].cancel()
        if what.startswith(b"+WPI"):
            self._await_ack(seq, number)
        self._pump_later()

    # pulling ---------------------------------------------------------------------------------------------------

    def pull(self, reply: str, body: Mapping[str, Any]) -> None:
        """Take a request for messages."""
        expires_ns = int(body.get("expires", 30 * SECOND_NS))
        request = Pull(reply, int(body.get("batch", 1)), self._host.now_ns() + expires_ns)
        self._pulls.append(request)
        self._host.after(expires_ns / 1e9, lambda: self._expired(request))
        self._pump_later()

    def _expired(self, request: Pull) -> None:
        if request in self._pulls and not self._is_gone and not self.is_stopped:
            self._pulls.remove(request)
            lines = (
                f"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: {request.left}\r\nNats-Pending-Bytes: 0\r\n"
            )
            self._host.deliver(request.reply, request.reply, "", f"{lines}\r\n".encode(), b"")

    # heartbeats ------------------------------------------------------------------------------------------------

    def _beat_later(self) -> None:
        self._beating = self._host.after(int(self.config["idle_heartbeat"]) / 1e9, self._beat)

    def _beat(self) -> None:
        self._beat_later()
        if self.is_stopped:
            return
        to = str(self.config["deliver_subject"])
        if not self._host.listens(to):
            self._beats_alone += 1
            if self._beats_alone >= SILENT_BEATS:
                self._host.forget(self)
            return
        self._beats_alone = 0
        if self._delivered_at_beat == self.delivered:
            lines = (
                f"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {self.delivered}\r\n"
                f"Nats-Last-KeptStream: {self.stream.last_seq}\r\n\r\n"
            )
            self._host.deliver(to, to, "", lines.encode(), b"")
        self._delivered_at_beat = self.delivered
        self._pump_later()


def _filters(config: Mapping[str, Any]) -> list[str]:
    one = config.get("filter_subject")
    return [str(one)] if one else [str(each) for each in config.get("filter_subjects") or ()]


def body_of(data: bytes) -> dict[str, Any]:
    """Return the body of an API request. Raises ApiRefusal."""
    try:
        return json.loads(data) if data else {}
    except ValueError:
        raise ApiRefusal(10025, "invalid JSON") from None

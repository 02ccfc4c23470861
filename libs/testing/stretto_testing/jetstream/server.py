"""A NATS server in memory: it speaks the protocol on the lines of a simulated network, and keeps streams.

The client is unchanged, down to the bytes that it writes and reads. What is stored outlives the server's process, as
on a disk that is synced, but for a loss of power (``tests/chaos/test_power.py`` shows that of a real one); what is on
its way, subscriptions and consumers that are not durable do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from stretto_wire.contract.registry import partition_of

from stretto_testing.jetstream.api import Api
from stretto_testing.jetstream.consumers import Consumer, Timer
from stretto_testing.jetstream.elections import Elections, Write
from stretto_testing.jetstream.snapshots import PREFIX
from stretto_testing.jetstream.streams import UNSYNCED_NS, ApiRefusal, Kept, KeptStream, offered
from stretto_testing.jetstream.subjects import Interest
from stretto_testing.loop import SimulatedLoop
from stretto_testing.network import Line, Network

VERSION = "2.15.0"
MAX_PAYLOAD = 8 << 20
NOBODY = b"NATS/1.0 503\r\n\r\n"
EXPIRY_LATE_S = 1.0
"""Longest time by which the end of a message's lifetime is late."""


@dataclass(slots=True, eq=False)
class ClientSession:
    """One client: what of a command has arrived, and its subscriptions by number."""

    line: Line
    unread: bytes = b""
    subscriptions: dict[int, Subscription] = field(default_factory=dict[int, "Subscription"])


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription of a client."""

    session: ClientSession
    number: int
    pattern: str


class SimulatedServer:
    """The server, or a cluster of three. ``on_stored`` gets each stored message, and the name of its process."""

    def __init__(self, loop: SimulatedLoop, chance: Random) -> None:
        self.chance = chance
        self.api = Api(self)
        self.network = Network(loop, self, Random(chance.getrandbits(64)))
        self.on_stored: Callable[[KeptStream, Kept, str], None] = lambda stream, kept, writer: None
        self._writer = ""
        self.wall_ahead_ns = 0
        self.is_clustered = False
        """Three servers with elections: owners then write atomic batches, one at a time"""
        self.elections = Elections(self.api, self.network, loop, self._store, self._expire_later)
        self.lag_share = 0.0
        """Share of readers who are answered by a follower that lags: what they ask for has not come there yet"""
        self._loop = loop
        self._sessions: dict[Line, ClientSession] = {}
        self._interest: Interest[Subscription] = Interest()
        self._clients = count(1)
        self._is_taking = False
        """Bytes of a client are being taken; what they cause is done behind them."""
        self._soon: list[Callable[[], None]] = []
        self._expiring: dict[str, tuple[int, Timer]] = {}
        """KeptStream -> the end of a lifetime that is waited for, and its timer"""
        self.api.on_created, self.api.on_restored, self.api.on_deleted = (
            self._created,
            self._expire_later,
            self._deleted,
        )

    # the life of the process -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the server as SIGKILL does; nobody can connect until ``start``."""
        self.network.is_refused = True
        self.elections.forget()
        for session in list(self._sessions.values()):
            session.line.hang_up()
        for consumer in list(self.api.consumers.values()):
            if not consumer.is_durable:
                self.api.remove(consumer)
        self.api.snapshots.forget()

    def lose_disk(self) -> None:
        """End the server, with everything that it has."""
        self.kill()
        for stream in list(self.api.streams.values()):
            self.api.delete(stream)

    def lose_power(self) -> None:
        """End the server as a loss of power does where nobody syncs: each stream lacks an end of its own."""
        self.kill()
        for stream in self.api.streams.values():
            stream.lose(self.now_ns() - int(self.chance.uniform(0, UNSYNCED_NS)))

    def start(self) -> None:
        """Start it again, on what is stored."""
        self.network.is_refused = False
        for stream in self.api.streams.values():
            stream.expire()

    # the host of consumers -------------------------------------------------------------------------------------

    def leads(self, name: str) -> bool:
        return self.elections.leads(name)

    def now_ns(self) -> int:
        return self._loop.wall_ns() + self.wall_ahead_ns

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        return self._loop.call_at(self._loop.time() + delay_s, action, context=self._loop.root.context)

    def soon(self, action: Callable[[], None]) -> None:
        if not self._soon and not self._is_taking:
            self.after(0.0, self._do_soon)
        self._soon.append(action)

    def _do_soon(self) -> None:
        actions, self._soon = self._soon, []
        for action in actions:
            action()

    def listens(self, subject: str) -> bool:
        return bool(self._interest.of(subject))

    def forget(self, consumer: Consumer) -> None:
        self.api.remove(consumer)

    def deliver(self, to: str, subject: str, reply: str, block: bytes, data: bytes) -> None:
        for subscription in self._interest.of(to):
            self._send(subscription, subject, reply, block, data)

    # the protocol ----------------------------------------------------------------------------------------------

    def opened(self, line: Line) -> None:
        info = {"server_id": "S", "server_name": "simulated", "version": VERSION, "proto": 1, "headers": True}
        info |= {"max_payload": MAX_PAYLOAD, "client_id": next(self._clients), "jetstream": True}
        info |= {"cluster": "simulated"} if self.is_clustered else {}
        line.server_number = self.elections.place()
        self._sessions[line] = ClientSession(line)
        line.send(b"INFO %b\r\n" % json.dumps(info).encode())

    def closed(self, line: Line) -> None:
        session = self._sessions.pop(line, None)
        for subscription in session.subscriptions.values() if session is not None else ():
            self._interest.remove(subscription.pattern, subscription)

    def received(self, line: Line, data: bytes) -> None:
        session = self._sessions.get(line)
        if session is None:
            return
        self._is_taking = True
        try:
            session.unread = self._take(session, session.unread + data)
        finally:
            self._is_taking = False
        self._do_soon()

    def _take(self, session: ClientSession, data: bytes) -> bytes:
        """Carry out the commands that have arrived whole; return the rest."""
        begin = 0
        while (end := data.find(b"\r\n", begin)) >= 0:
            words = data[begin:end].split()
            after = end + 2
            if words[0] in (b"PUB", b"HPUB"):
                after += int(words[-1]) + 2
                if after > len(data):
                    break
                self._writer = session.line.node.name
                self._published(words, data[end + 2 : after - 2])
                self._writer = ""
            else:
                self._told(session, words)
            begin = after
        return data[begin:]

    def _told(self, session: ClientSession, words: list[bytes]) -> None:
        if words[0] == b"PING":
            session.line.send(b"PONG\r\n")
        elif words[0] == b"SUB":
            subscription = Subscription(session, int(words[-1]), words[1].decode())
            session.subscriptions[subscription.number] = subscription
            self._interest.add(subscription.pattern, subscription)
        elif words[0] == b"UNSUB":
            gone = session.subscriptions.pop(int(words[1]), None)
            if gone is not None:
                self._interest.remove(gone.pattern, gone)

    def _published(self, words: list[bytes], body: bytes) -> None:
        has_headers = words[0] == b"HPUB"
        names = words[1 : -2 if has_headers else -1]
        subject, reply = names[0].decode(), names[1].decode() if len(names) > 1 else ""
        at = int(words[-2]) if has_headers else 0
        self.publish(_mapped(subject), reply, body[:at], body[at:])

    def publish(self, subject: str, reply: str, block: bytes, data: bytes) -> None:
        """Take a message, of a client or of the simulation itself."""
        if subject.startswith("$JS.API."):
            self._asked(subject, reply, data)
            return
        if subject.startswith("$JS.ACK."):
            self._acknowledged(subject, reply, data)
            return
        if subject.startswith(PREFIX):
            answer = self.api.snapshots.took(subject, data)
            if answer is not None and reply:
                self.deliver(reply, reply, "", b"", answer)
            return
        for stream in self.api.streams.values():
            if stream.takes(subject):
                self._store(stream, Write(self._writer, subject, reply, block, data))
                break
        else:
            if reply and not self.listens(subject):
                self.deliver(reply, reply, "", NOBODY, b"")
        self.deliver(subject, subject, reply, block, data)

    def _asked(self, subject: str, reply: str, data: bytes) -> None:
        ask = self.elections.ask if self.is_clustered else self.api.ask
        try:
            answer: dict[str, Any] | None = ask(subject, reply, data)
        except ApiRefusal as refused:
            answer = {"error": refused.body}
        if answer is not None and self._lags(answer):
            answer["num_pending"] = 0
        if answer is not None and reply:
            self.deliver(reply, reply, "", b"", json.dumps(answer).encode())

    def _lags(self, answer: dict[str, Any]) -> bool:
        """Return whether a follower that lags answers this."""
        return "num_pending" in answer and self.chance.random() < self.lag_share

    def _acknowledged(self, subject: str, reply: str, data: bytes) -> None:
        _, _, stream, name, _, seq, number, *_ = subject.split(".")
        if (consumer := self.api.consumers.get((stream, name))) is not None:
            consumer.settled(int(seq), int(number), data)
        if reply:
            self.deliver(reply, reply, "", b"", b"")

    # streams ---------------------------------------------------------------------------------------------------

    def _store(self, stream: KeptStream, write: Write) -> None:
        is_stored, is_told = self.elections.take(stream, write)
        if is_told and not is_stored and write.reply:
            self.deliver(write.reply, write.reply, "", NOBODY, b"")
        if not is_stored:
            return
        before, self._writer = self._writer, write.writer
        try:
            answer = stream.publish(offered(write.subject, write.block, write.data))
        except ApiRefusal as refused:
            answer = {"error": refused.body, "stream": stream.name, "seq": 0}
        self._writer = before
        if answer is not None and write.reply and is_told:
            self.deliver(write.reply, write.reply, "", b"", json.dumps(answer).encode())

    def _created(self, stream: KeptStream) -> None:
        def stored(kept: Kept) -> None:
            self.on_stored(stream, kept, self._writer)
            self._expire_later(stream)

        stream.on_stored.append(stored)

    def _deleted(self, stream: KeptStream) -> None:
        if (waited := self._expiring.pop(stream.name, None)) is not None:
            waited[1].cancel()

    def _expire_later(self, stream: KeptStream) -> None:
        """Set the timer of the next message whose lifetime ends."""
        due_ns, set_to = stream.next_expiry_ns, self._expiring.get(stream.name)
        if due_ns is None or (set_to is not None and set_to[0] <= due_ns):
            return
        if set_to is not None:
            set_to[1].cancel()
        delay_s = max(0.0, (due_ns - self.now_ns()) / 1e9) + self.chance.uniform(0, EXPIRY_LATE_S)
        self._expiring[stream.name] = due_ns, self.after(delay_s, lambda: self._expire(stream))

    def _expire(self, stream: KeptStream) -> None:
        del self._expiring[stream.name]
        if self.leads(stream.name):  # else its next leader looks again
            stream.expire()
            self._expire_later(stream)

    def _send(self, subscription: Subscription, subject: str, reply: str, block: bytes, data: bytes) -> None:
        number = subscription.number
        if block:
            head = f"HMSG {subject} {number} {reply + ' ' if reply else ''}{len(block)} {len(block) + len(data)}\r\n"
        else:
            head = f"MSG {subject} {number} {reply + ' ' if reply else ''}{len(data)}\r\n"
        subscription.session.line.send(b"%b%b%b\r\n" % (head.encode(), block, data))


def _mapped(subject: str) -> str:
    """Return where a request goes: to the owner of the job's partition, as ``RPC_MAPPING`` of the real server does."""
    words = subject.split(".")
    if len(words) == 5 and words[:2] == ["rpc", "v1"]:
        return ".".join((*words[:4], str(partition_of(words[4])), words[4]))
    return subject

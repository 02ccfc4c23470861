"""A listener's side of one connection: admit it, then answer its requests until it ends."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .addresses import limit, peer_name
from .encryption import Encryption
from .errors import AccessRefused, FrameRefused
from .exchange import FrameReader
from .frames import Buffer, Bytes, Flag, Message, encoded, text_frame
from .handshake import Verdict, challenge, decide, refuse
from .keys import Key
from .transports import Link, PlainLink, deadline_of, drain, shut

HANDSHAKE_S = 5.0
FRAME_S = 30.0
FRAME_BYTES_PER_S_MIN = 1_000_000
"""Time limit of a frame that has begun, in either direction: 30 s and a second per MB, since a frozen peer keeps a
buffer."""
REFUSAL_S = 1.0
LOG_S = 1.0
_TLS_HANDSHAKE = 0x16
"""First byte of a client with encryption."""

log = logging.getLogger("stretto_plane")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Peer:
    """The other side of one connection; another connection of the same process is another peer.

    ``address``: for logs.
    """

    address: str


Handler = Callable[[Message, Peer], tuple[int, Sequence[Buffer]]]


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a listener since its start."""

    connections: int = 0
    requests: int = 0
    failures: int = 0
    """Number of requests whose handler raised, or returned what cannot be sent."""
    refused_peers: int = 0
    refused_frames: int = 0
    dropped: int = 0
    """Number of connections that were not begun, for lack of a descriptor, memory or a thread."""


class Journal:
    """Counts what happens at a listener, and logs failures: at most one line a second of each kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Counts.__slots__, 0)
        self._logged_at_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    @property
    def counts(self) -> Counts:
        with self._lock:
            return Counts(**self._counts)

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def complain(self, name: str, peer: Peer, text: str, error: BaseException | None = None) -> None:
        """Count and log."""
        now_s = time.monotonic()
        with self._lock:
            self._counts[name] += 1
            if now_s - self._logged_at_s.get(name, -LOG_S) < LOG_S:
                self._suppressed[name] = self._suppressed.get(name, 0) + 1
                return
            self._logged_at_s[name] = now_s
            suppressed = self._suppressed.pop(name, 0)
        more = f" ({suppressed} more like this)" if suppressed else ""
        log.warning("%s: %s%s", peer.address, text, more, exc_info=error)


@dataclass(frozen=True, slots=True)
class Terms:
    """The part of a listener that its sessions share."""

    handler: Handler
    key: Key
    encryption: Encryption | None
    size_bytes_max: Callable[[], int]
    journal: Journal


class Session:
    """One connection. ``admit`` is asked once it is authenticated, and says whether it is served."""

    def __init__(self, plain: socket.socket, terms: Terms, admit: Callable[[Session], bool]) -> None:
        self._socket = plain
        self._terms = terms
        self._admit = admit
        self.peer = Peer(peer_name(plain))

    def run(self) -> None:
        """Serve until either side ends the connection. Nothing is raised."""
        journal = self._terms.journal
        try:
            self._serve(self._authenticated())
        except AccessRefused as error:
            journal.complain("refused_peers", self.peer, f"refused: {error}")
        except (EOFError, OSError) as error:
            log.debug("%s: ended: %s", self.peer.address, error)
        except Exception as error:
            journal.complain("failures", self.peer, "the connection is ended by a fault of the plane", error)
        finally:
            self._socket.close()

    def shut(self) -> None:
        """End the connection from another thread."""
        shut(self._socket)

    def _authenticated(self) -> Link:
        """Return a link to a peer that has proved to have the key. Raises AccessRefused, OSError, EOFError."""
        deadline_s = time.monotonic() + HANDSHAKE_S
        try:
            link = self._link(deadline_s)
            challenge(link, self._terms.key, deadline_s)
        except TimeoutError:
            raise AccessRefused(f"it was not authenticated within {HANDSHAKE_S:g} s") from None
        except (OSError, EOFError) as error:
            raise AccessRefused(f"it has ended before it was authenticated ({error})") from None
        admitted = self._admit(self)
        decide(link, Verdict.ADMITTED if admitted else Verdict.FULL, deadline_s)
        if not admitted:
            raise AccessRefused("there are connections_max connections already")
        self._terms.journal.count("connections")
        return link

    def _link(self, deadline_s: float) -> Link:
        plain = PlainLink(self._socket)
        limit(self._socket, socket.SO_RCVTIMEO, HANDSHAKE_S)
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            raise TimeoutError from None
        with_encryption = first == bytes([_TLS_HANDSHAKE])
        if with_encryption and self._terms.encryption is None:
            refuse(plain, Verdict.NOT_ENCRYPTED, deadline_s)
            raise AccessRefused("it comes with encryption, which is off here")
        if self._terms.encryption is None:
            return plain
        if first and not with_encryption:
            refuse(plain, Verdict.ENCRYPTED, deadline_s)
            raise AccessRefused("it comes without encryption, which is required here")
        return self._terms.encryption.proven(self._socket, HANDSHAKE_S, self._become)

    def _become(self, encrypted: socket.socket) -> None:
        """Take the socket that has replaced the plain one: ``shut`` ends its handshake, too."""
        self._socket = encrypted

    def _serve(self, link: Link) -> None:
        reader = FrameReader(link)
        while True:
            reader.wait(None)
            try:
                flag, message = reader.take(self._terms.size_bytes_max(), _deadline_of)
                if flag is not Flag.MESSAGE:
                    raise FrameRefused(f"a frame with flag {flag.name} is refused: a client sends messages only")
            except FrameRefused as error:
                self._terms.journal.complain("refused_frames", self.peer, str(error))
                link.send(text_frame(Flag.REFUSAL, str(error)), deadline_of(REFUSAL_S))
                drain(self._socket, REFUSAL_S)
                return
            self._terms.journal.count("requests")
            answer = self._answer(message)
            del message  # so that its buffer is free while the next one is waited for
            link.send(answer, _deadline_of(sum(memoryview(buffer).nbytes for buffer in answer)))
            del answer

    def _answer(self, message: Message) -> list[Bytes]:
        try:
            kind, parts = self._terms.handler(message, self.peer)
            return encoded(kind, parts)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._terms.journal.complain("failures", self.peer, f"a request of kind {message.kind} failed", error)
            return text_frame(Flag.FAILURE, text)


def _deadline_of(size_bytes: int) -> float:
    return time.monotonic() + FRAME_S + size_bytes / FRAME_BYTES_PER_S_MIN

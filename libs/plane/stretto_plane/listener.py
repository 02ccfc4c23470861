"""A server's side: an address at which each connection is served in a thread of its own."""

from __future__ import annotations

import socket
import threading

from .addresses import listening, parsed, tune
from .encryption import Encryption
from .keys import Key
from .session import Counts, Handler, Journal, Peer, Session, Terms
from .transports import shut

STRANGERS_MAX = 64
"""Most connections that are not authenticated yet. One more ends the oldest, so that no crowd shuts out a holder of
the key."""
BACKLOG = 1024
RETRY_S = 0.05
CLOSE_S = 2.0


class Listener:
    """Serves an address until it is closed.

    ``handler`` answers a request. It runs in the thread of its connection: requests of one connection come one after
    the other, those of several at the same time. If it raises, the peer gets the text (PeerFailed), the log gets the
    traceback, and the connection goes on. A frame that breaks the limits ends its connection only.

    ``size_bytes_max``: the most bytes of a request. It may be set later. ``connections_max``: the most connections that
    are served at a time.

    Raises:
        PlaneError: the address cannot be served.
    """

    def __init__(
        self,
        address: str,
        handler: Handler,
        key: Key,
        *,
        size_bytes_max: int,
        encrypted: bool = False,
        connections_max: int = 4096,
    ) -> None:
        self.size_bytes_max = size_bytes_max
        self._connections_max = connections_max
        self._journal = Journal()
        encryption = Encryption(key, server=True) if encrypted else None
        self._terms = Terms(handler, key, encryption, lambda: self.size_bytes_max, self._journal)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        """Notified when a connection has ended that was not authenticated."""
        self._strangers: dict[Session, threading.Thread] = {}
        """Sessions that are not authenticated yet, the oldest first."""
        self._ending: dict[Session, threading.Thread] = {}
        """Sessions of strangers that are closed or refused; they count until their threads end."""
        self._served: dict[Session, threading.Thread] = {}
        self._closing = threading.Event()
        self._socket, real, self._remove = listening(parsed(address), BACKLOG)
        self.address = str(real)
        """Address that the socket really has: with the port that the kernel chose where 0 was asked for."""
        self._accepting = threading.Thread(target=self._accept, name=f"plane {self.address}", daemon=True)
        self._accepting.start()

    @property
    def counts(self) -> Counts:
        """Counts since the start."""
        return self._journal.counts

    @property
    def connections(self) -> int:
        """Connections that are served now."""
        with self._lock:
            return len(self._served)

    def close(self) -> None:
        """End all connections and leave the address; repeatable. Handlers that run get two seconds to end."""
        self._closing.set()
        shut(self._socket)
        self._accepting.join(CLOSE_S)
        self._socket.close()
        self._remove()
        with self._lock:
            sessions = self._strangers | self._ending | self._served
        for session in sessions:
            session.shut()
        for thread in sessions.values():
            if thread is not threading.current_thread():
                thread.join(CLOSE_S / len(sessions))

    def end_connections(self) -> None:
        """End the connections that are served now; whoever still wants to be served connects anew."""
        with self._lock:
            sessions = list(self._served)
        for session in sessions:
            session.shut()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        """Take connections. Errors pass: a peer that is gone again, or no descriptor, memory or thread for a while."""
        while not self._closing.is_set():
            try:
                plain, _ = self._socket.accept()
            except OSError as error:
                if not self._closing.is_set():
                    self._journal.complain("dropped", Peer(self.address), f"no connection is taken for now: {error}")
                self._closing.wait(RETRY_S)
                continue
            try:
                self._begin(plain)
            except Exception as error:
                self._journal.complain("dropped", Peer(self.address), f"a connection is not begun: {error}")
                plain.close()

    def _begin(self, plain: socket.socket) -> None:
        tune(plain)
        session = Session(plain, self._terms, self._admit)
        thread = threading.Thread(target=self._run, args=(session,), name=f"plane {session.peer.address}", daemon=True)
        with self._room:
            self._make_room()
            self._strangers[session] = thread
        try:
            thread.start()
        except BaseException:
            self._forget(session)
            raise

    def _make_room(self) -> None:
        """Wait until one stranger less lives than may. No other connection is taken meanwhile, or nothing would bound
        the threads. A thread that does not end at once holds nobody up: the next oldest is ended, too."""
        while len(self._strangers) + len(self._ending) >= STRANGERS_MAX and not self._closing.is_set():
            if self._strangers:
                oldest = next(iter(self._strangers))
                self._ending[oldest] = self._strangers.pop(oldest)
                oldest.shut()
            self._room.wait(RETRY_S)

    def _run(self, session: Session) -> None:
        try:
            session.run()
        finally:
            self._forget(session)

    def _admit(self, session: Session) -> bool:
        with self._lock:
            thread = self._strangers.pop(session, None)
            if thread is None:  # it was ended for another one at this moment
                return False
            if len(self._served) >= self._connections_max or self._closing.is_set():
                self._ending[session] = thread
                return False
            self._served[session] = thread
            self._room.notify()
            return True

    def _forget(self, session: Session) -> None:
        with self._room:
            for sessions in (self._strangers, self._ending, self._served):
                sessions.pop(session, None)
            self._room.notify()

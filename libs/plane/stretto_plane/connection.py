"""A client's side: one connection to a listener."""

from __future__ import annotations

import contextlib
import errno
import ssl
from collections.abc import Sequence
from typing import NoReturn

from .addresses import Address, connected, parsed
from .encryption import Encryption
from .errors import AccessRefused, FrameRefused, PeerFailed, PeerLost, PeerSlow
from .exchange import FrameReader
from .frames import Buffer, Flag, Message, encoded, text_of
from .handshake import ENCRYPTION_REMEDY, greet
from .keys import Key
from .transports import Link, PlainLink, deadline_of

REFUSAL_S = 0.5
"""Time for the reason of a peer that has ended a connection while it was sent to."""


class Connection:
    """A connection to a listener, with one outstanding request at a time. It is for one thread at a time.

    ``timeout_s``: for connecting with authentication, for sending, and for receiving unless another one is given there.
    ``size_bytes_max``: the most bytes of an answer.

    After PeerLost and FrameRefused it is closed; after PeerFailed it goes on.

    Raises:
        PeerLost: nobody serves there.
        AccessRefused: the peer has another key, or encryption is not the same on both sides.
    """

    def __init__(
        self, address: str, key: Key, *, timeout_s: float, encrypted: bool = False, size_bytes_max: int = 2**31
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._size_bytes_max = size_bytes_max
        self._link: Link | None = None
        self._awaits = False
        """True from a request to its answer: an answer does not say to which request it belongs."""
        self._link = _authenticated(parsed(address), key, timeout_s, encrypted)
        self._reader = FrameReader(self._link)

    def send(self, kind: int, parts: Sequence[Buffer]) -> None:
        """Send a request; its parts may be changed afterwards. Raises PeerLost, FrameRefused."""
        frame = encoded(kind, parts)
        link = self._opened()
        assert not self._awaits, "a request is sent while the answer to another is awaited"
        self._awaits = True
        try:
            link.send(frame, deadline_of(self._timeout_s))
        except TimeoutError as error:
            self._lose(_slow(self.address, f"it took no more bytes within {self._timeout_s:g} s", error))
        except OSError as error:
            reason = self._reason()
            self._lose(PeerLost(self.address, error) if reason is None else FrameRefused(f"{self.address}: {reason}"))

    def receive(self, timeout_s: float | None = None) -> Message:
        """Receive the answer. Raises PeerLost, PeerFailed, FrameRefused."""
        self._opened()
        assert self._awaits, "an answer is awaited, and nothing was asked"
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = deadline_of(timeout_s)
        try:
            self._reader.wait(deadline_s)
            flag, message = self._reader.take(self._size_bytes_max, lambda _: deadline_s)
        except TimeoutError as error:
            self._lose(_slow(self.address, f"it did not answer within {timeout_s:g} s", error))
        except EOFError:
            self._lose(PeerLost(self.address, "it has closed the connection"))
        except OSError as error:
            self._lose(PeerLost(self.address, error))
        except FrameRefused as error:
            self._lose(FrameRefused(f"{self.address}: {error}"))
        self._awaits = False
        if flag is Flag.FAILURE:
            raise PeerFailed(self.address, text_of(message.parts))
        if flag is Flag.REFUSAL:
            self._lose(FrameRefused(f"{self.address}: {text_of(message.parts)}"))
        return message

    def call(self, kind: int, parts: Sequence[Buffer], timeout_s: float | None = None) -> Message:
        """Send a request and receive its answer. Raises PeerLost, PeerFailed, FrameRefused."""
        self.send(kind, parts)
        return self.receive(timeout_s)

    def close(self) -> None:
        """Close the connection; repeatable."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> Link:
        if self._link is None:
            raise PeerLost(self.address, "this connection was closed before; make a new one")
        return self._link

    def _reason(self) -> str | None:
        """Return the reason for which the peer has ended the connection, if it has given one."""
        with contextlib.suppress(OSError, EOFError, FrameRefused):
            deadline_s = deadline_of(REFUSAL_S)
            self._reader.wait(deadline_s)
            flag, message = self._reader.take(self._size_bytes_max, lambda _: deadline_s)
            return text_of(message.parts) if flag is Flag.REFUSAL else None
        return None

    def _lose(self, error: PeerLost | FrameRefused) -> NoReturn:
        self.close()
        raise error from None


def _authenticated(address: Address, key: Key, timeout_s: float, encrypted: bool) -> Link:
    """Return a link on which both sides have proved that they have the key. Raises PeerLost, AccessRefused."""
    name = str(address)
    deadline_s = deadline_of(timeout_s)
    assert deadline_s is not None
    try:
        plain = connected(address, timeout_s)
    except (BlockingIOError, TimeoutError) as error:
        raise _slow(name, f"no connection within {timeout_s:g} s", error) from None
    except OSError as error:
        raise PeerLost(name, error) from None
    link: Link = PlainLink(plain)
    try:
        if encrypted:
            link = Encryption(key, server=False).proven(plain, timeout_s)
        greet(link, key, deadline_s)
    except TimeoutError as error:
        link.close()
        raise _slow(name, f"no authentication within {timeout_s:g} s", error) from None
    except (EOFError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        link.close()
        raise PeerLost(name, "it has closed the connection before it was authenticated") from None
    except ssl.SSLError as error:
        link.close()
        raise AccessRefused(f"{name}: {error}; give both sides the job's key, and {ENCRYPTION_REMEDY}") from None
    except OSError as error:
        link.close()
        raise PeerLost(name, error) from None
    except AccessRefused as error:
        link.close()
        raise AccessRefused(f"{name}: {error}") from None
    return link


def _slow(address: str, text: str, error: OSError) -> PeerLost:
    """Return the error of a peer that is slow; or lost, if the kernel says that its host does not answer."""
    return PeerLost(address, error) if error.errno == errno.ETIMEDOUT else PeerSlow(address, text)

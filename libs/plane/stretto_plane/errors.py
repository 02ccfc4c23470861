"""The errors of the plane. Every message names the address or the field, its value and the remedy."""

from __future__ import annotations


class PlaneError(Exception):
    """The base of all errors of the plane, and an argument that cannot be used."""


class PeerLost(PlaneError):
    """The peer is not there: it refused, reset or closed the connection. The connection is closed."""

    def __init__(self, address: str, cause: object) -> None:
        super().__init__(f"{address}: {cause}")
        self.address = address
        self.cause = cause


class PeerSlow(PeerLost):
    """The peer did not answer in time. The connection is closed: a late answer would be taken for the next one."""


class PeerFailed(PlaneError):
    """The handler of the peer raised an error, or gave an answer that cannot be sent. The connection goes on."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__(f"{address}: {text}")
        self.address = address
        self.text = text


class AccessRefused(PlaneError):
    """The peer has another key, another version or another mode of encryption, or serves no further connection."""


class FrameRefused(PlaneError):
    """A message breaks the limits or cannot be sent; or bytes are no frame of the plane."""

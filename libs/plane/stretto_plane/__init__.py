"""The plane for bulk bytes between the processes of a job: requests of many parts, authenticated by the job's key."""

from .connection import Connection
from .errors import AccessRefused, FrameRefused, PeerFailed, PeerLost, PeerSlow, PlaneError
from .frames import Buffer, Message
from .keys import Key
from .listener import Listener
from .session import Counts, Handler, Peer

__all__ = [
    "AccessRefused",
    "Buffer",
    "Connection",
    "Counts",
    "FrameRefused",
    "Handler",
    "Key",
    "Listener",
    "Message",
    "Peer",
    "PeerFailed",
    "PeerLost",
    "PeerSlow",
    "PlaneError",
]

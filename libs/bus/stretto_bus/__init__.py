"""The one client of NATS: connection, ordered consumers, fenced writers, requests."""

from stretto_bus.bus import Bus
from stretto_bus.client import Client, Event
from stretto_bus.faults import BusFault, CallRefused, CallTimeout, Fault, IdentityFault
from stretto_bus.login import Login

__all__ = [
    "Bus",
    "BusFault",
    "CallRefused",
    "CallTimeout",
    "Client",
    "Event",
    "Fault",
    "IdentityFault",
    "Login",
]

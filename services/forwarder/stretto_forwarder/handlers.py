"""HTTP requests made from stored events: CloudEvents 1.0 in binary mode, signed by Standard Webhooks 1.0."""

from __future__ import annotations

import base64
import fnmatch
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pydantic import SecretBytes
from stretto_bus.reading.ordered_consumer import Stored
from stretto_wire import CHANNELS, Channel, WireError, channel_at

from stretto_forwarder.points import OF_METRICS
from stretto_forwarder.settings import Endpoint

REQUIRED = ("ce-specversion", "ce-id", "ce-source", "ce-type")
PASSED_ON = (*REQUIRED, "ce-subject", "ce-time")
PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
"""Characters that a header's value holds unencoded (CloudEvents, HTTP binding, section 3.1.3.2)."""
_BY_NAME = {channel.name: channel for channel in CHANNELS if channel.kind == "evt"}


class NotForwardable(Exception):
    """A stored message that is no event of the registry."""


@dataclass(frozen=True, slots=True)
class Post:
    """A request without the time of sending and the signature."""

    id: str
    headers: dict[str, str]
    body: bytes


def pattern_of(endpoint: Endpoint) -> str:
    """Return the narrowest single subject with wildcards that covers all events of the endpoint."""
    channel = _BY_NAME[endpoint.events[0]] if len(endpoint.events) == 1 else None
    what = f"{channel.service}.{channel.name}" if channel else "*.*"
    job = endpoint.jobs[0] if len(endpoint.jobs) == 1 and "*" not in endpoint.jobs[0] else "*"
    return f"*.evt.v1.{what}.{job}"


def start_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the consumer settings for the place where a new cursor begins."""
    if endpoint.start == "now":
        return {"deliver_policy": "new"}
    if endpoint.start == "beginning":
        return {"deliver_policy": "all"}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": endpoint.start}


def wanted(endpoint: Endpoint, subject: str) -> bool:
    """Return True if the endpoint asked for this event. Raises NotForwardable."""
    channel = _channel(subject)
    if endpoint.form != "webhook" and channel.message not in OF_METRICS:
        return False
    job = subject.rpartition(".")[2]
    named = not endpoint.events or channel.name in endpoint.events
    return named and (not endpoint.jobs or any(fnmatch.fnmatchcase(job, each) for each in endpoint.jobs))


def post_of(stored: Stored) -> Post:
    """Make the request. Raises NotForwardable for a message without an attribute that every event has."""
    _channel(stored.subject)
    missing = [name for name in REQUIRED if not stored.headers.get(name)]
    if missing:
        raise NotForwardable(f"it has no {', '.join(missing)}")
    headers = {name: _encoded(stored.headers[name]) for name in PASSED_ON if name in stored.headers}
    headers |= {"content-type": "application/json", "ce-sequence": f"{stored.seq:020d}"}
    if trace := stored.headers.get("traceparent"):
        headers["traceparent"] = _encoded(trace)
    # the signature joins its parts by full stops, so the id must not contain one
    return Post(stored.headers["ce-id"].replace(".", "_"), headers, stored.data)


def signed(post: Post, secrets: Sequence[SecretBytes], now: float) -> dict[str, str]:
    """Return all headers, with one signature for each secret, so that the receiver can change secrets at any time."""
    stamp = str(int(now))
    content = b".".join((post.id.encode(), stamp.encode(), post.body))
    macs = [hmac.digest(secret.get_secret_value(), content, "sha256") for secret in secrets]
    signature = " ".join(f"v1,{base64.b64encode(mac).decode()}" for mac in macs)
    return post.headers | {
        "webhook-id": _encoded(post.id),
        "webhook-timestamp": stamp,
        "webhook-signature": signature,
        "user-agent": "stretto-forwarder",
    }


def _channel(subject: str) -> Channel:
    try:
        return channel_at(subject)
    except WireError as error:
        raise NotForwardable(str(error)) from None


def _encoded(text: str) -> str:
    return quote(text, safe=PRINTABLE)

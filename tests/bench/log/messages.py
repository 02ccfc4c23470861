"""Processor time of an event on its way through a service, without the bus: decode, handle, encode what is emitted.

Each message that a service consumes, telemetry and requests included, goes to a fresh machine. That machine first gets
the examples' job, if its service consumes ``JobSubmitted``; the fitter, which does not, begins with the message. The
same message is then handled :data:`TURNS` times, so machines that recognise a repeated message are measured at that.
The baseline is the standard library's JSON, read and written once.
"""

from __future__ import annotations

import importlib
import json
import time
from statistics import mean
from typing import Any, NamedTuple, Self

from stretto_core.machine import CoreError
from stretto_messages.base import Message, example_of
from stretto_runtime import Meta, Service
from stretto_wire.codec import encode
from stretto_wire.contract.registry import Channel, channel_of, inputs_of, parse_on, requests_of, subject_of
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.errors import WireError

from tests.bench.rows import Row, row

SERVICES = ("profiler", "fitter", "planner", "arbiter", "dispatcher", "checkpoints", "oom", "actuator")
TURNS = 400
NOW_S = 1_795_000_000.25


class Encoded(NamedTuple):
    """A message as it arrives for the machine of a key."""

    channel: Channel
    data: bytes
    meta: Meta

    @classmethod
    def of(cls, message: Message, key: str) -> Self:
        meta = Meta(seq=1, time_s=NOW_S, subject=subject_of(message), headers={}, key=key, request_id="bench.1")
        return cls(channel_of(message), encode(message), meta)


def run() -> list[Row]:
    """Return one row for each service, in microseconds of processor time per event."""
    return [_measured(name) for name in SERVICES]


def service_of(name: str) -> Service:
    """Return the service with its default settings."""
    module = importlib.import_module(f"stretto_{name}.service")
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Service) and value.__dict__.get("name") == name
    ]
    return found(found.settings_type())


def _measured(name: str) -> Row:
    service = service_of(name)
    messages = [example_of(one.message) for one in inputs_of(name) if one.scope == service_scope(service)]
    messages += [example_of(request) for request in requests_of(name)]
    spent: list[float] = []
    plain: list[float] = []
    submitted = [message for message in messages if isinstance(message, JobSubmitted)]
    for message in messages:
        key = "_" if service_scope(service) == "cluster" else message.job
        machine = service.machine(key, None)
        for opening in submitted:
            _once(service, machine, Encoded.of(opening, key))
        encoded = Encoded.of(message, key)
        try:
            spent.append(_cpu_us(lambda: _once(service, machine, encoded)))  # noqa: B023
        except (CoreError, WireError):  # an example may be impossible here: that of a restored checkpoint has no ledger
            continue
        plain.append(_cpu_us(lambda: json.dumps(json.loads(encoded.data))))  # noqa: B023
    note = f"{len(spent)} kinds of messages; the longest takes {max(spent):.0f} us"
    return row(f"event through the {name}", mean(spent), "us", "", None, note, baseline=mean(plain))


def service_scope(service: Service) -> str:
    """Return the scope of the machine that is measured."""
    return "job" if "job" in service.state_types else "cluster"


def _once(service: Service, machine: Any, encoded: Encoded) -> None:
    channel, data, meta = encoded
    event = service.to_event(parse_on(channel, meta.subject, data), meta)
    if event is None:
        return
    for action in machine.handle(event, NOW_S):
        message = service.to_message(meta.key, getattr(action, "fact", None) or getattr(action, "body", None))
        if message is not None:
            encode(message)


def _cpu_us(work: Any) -> float:
    work()
    begin = time.process_time()
    for _ in range(TURNS):
        work()
    return (time.process_time() - begin) / TURNS * 1e6

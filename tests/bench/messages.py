"""Processor time of an event on its way through a service, without the bus: decode, handle, encode what is emitted.

Each service gets the example of every message that it consumes, in the order of the registry, to the machine of the
examples' job; telemetry and requests included. The baseline is the standard library's JSON, read and written once.
"""

from __future__ import annotations

import importlib
import json
import time
from statistics import mean
from typing import Any

from stretto_core.machine import CoreError
from stretto_messages.base import example_of
from stretto_runtime import Meta, Service
from stretto_wire.codec import encode
from stretto_wire.errors import WireError
from stretto_wire.registry import channel_of, inputs_of, parse_on, requests_of, subject_of

from tests.bench.rows import Row, row

SERVICES = ("profiler", "fitter", "planner", "arbiter", "dispatcher", "checkpoints", "oom", "actuator")
TURNS = 400
NOW_S = 1_795_000_000.25


def run() -> list[Row]:
    """One row for each service, in microseconds of processor time per event."""
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
    for message in messages:
        channel, subject, data = channel_of(message), subject_of(message), encode(message)
        key = "_" if service_scope(service) == "cluster" else message.job
        meta = Meta(seq=1, time_s=NOW_S, subject=subject, headers={}, key=key, request_id="bench.1")
        machine = service.machine(key, None)
        for first in messages[:1]:  # the job exists
            _once(service, machine, key, channel_of(first), subject_of(first), encode(first), meta)
        try:
            spent.append(_cpu_us(lambda: _once(service, machine, key, channel, subject, data, meta)))  # noqa: B023
        except (CoreError, WireError):  # an example need not be possible: the ledger of the restored checkpoint is none
            continue
        plain.append(_cpu_us(lambda: json.dumps(json.loads(data))))  # noqa: B023
    note = f"{len(spent)} kinds of messages; the longest takes {max(spent):.0f} us"
    return row(f"event through the {name}", mean(spent), "us", "", None, note, baseline=mean(plain))


def service_scope(service: Service) -> str:
    """Return the scope of the machine that is measured."""
    return "job" if "job" in service.state_types else "cluster"


def _once(service: Service, machine: Any, key: str, channel: Any, subject: str, data: bytes, meta: Meta) -> None:
    event = service.to_event(parse_on(channel, subject, data), meta)
    if event is None:
        return
    for action in machine.handle(event, NOW_S):
        message = service.to_message(key, getattr(action, "fact", None) or getattr(action, "body", None))
        if message is not None:
            encode(message)


def _cpu_us(work: Any) -> float:
    work()
    begin = time.process_time()
    for _ in range(TURNS):
        work()
    return (time.process_time() - begin) / TURNS * 1e6

"""The registry names exactly those who read a message: credentials and documents are made of it."""

from __future__ import annotations

import importlib

import pytest
from stretto_runtime import Service
from stretto_runtime.access.permissions import SERVICES
from stretto_wire.registry import CHANNELS

NAMES = [name for name in SERVICES if name != "gateway"]  # reads every event, for its subscribers


def service_of(name: str) -> type[Service]:
    module = importlib.import_module(f"stretto_{name}.service")
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Service) and value.__dict__.get("name") == name
    ]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_registry_names_a_service_where_it_reads_and_only_there(name: str) -> None:
    reads = {entry.message.__name__ for entry in service_of(name).inputs}
    named = {c.message.__name__ for c in CHANNELS if c.kind in ("evt", "tel") and name in c.readers}
    assert named == reads


@pytest.mark.parametrize("name", NAMES)
def test_a_service_answers_the_requests_of_the_registry(name: str) -> None:
    service = service_of(name)
    answered = {*service.rpcs, *service.queries}
    assert {c.message for c in CHANNELS if c.kind == "rpc" and c.service == name} == answered

"""Imported by the process that gateways are forks of: it does once what each start would do again.

A gateway makes some 70 routes when it starts, and pydantic reads the source of each class that a route answers with
again, for the docstrings of its fields: a second of CPU a start.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any, cast

import stretto_gateway.streams.bus  # noqa: F401 - to be there in each fork, as are the next ones
import stretto_runtime.program  # noqa: F401
import uvicorn  # noqa: F401
from pydantic._internal import _fields
from stretto_gateway.access.buckets import Buckets
from stretto_gateway.access.callers import Access, TokenFile
from stretto_gateway.http.app import routed
from stretto_gateway.service import Gateway
from stretto_gateway.settings import GatewaySettings

_fields.extract_docstrings_from_cls = cache(_fields.extract_docstrings_from_cls)
ACCESS = Access(lambda: "own", TokenFile(Path("none")), None, Buckets(0, 1), time.monotonic)
APP = routed(Gateway(cast(Any, None), GatewaySettings(), time.time), ACCESS, cast(Any, None))
"""The routes of a gateway that nobody starts."""

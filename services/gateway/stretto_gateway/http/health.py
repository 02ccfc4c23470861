"""Routes of health and metrics, which monitoring asks without a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from stretto_wire.rest.views import Status

from ..read_model.summaries import START_BOUNDS_S, start_s
from ..service import Gateway
from ..streams.fullness import warnings

STARTS = "stretto_gateway_start_seconds"
METRICS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("stretto_gateway_ready", "gauge", (), "1: the view has read the stream up to its end"),
    ("stretto_gateway_last_seq", "gauge", (), "sequence of the last event in the view"),
    ("stretto_gateway_jobs", "gauge", ("status",), "jobs in the view"),
    (
        "stretto_gateway_late_checkpoints",
        "gauge",
        (),
        "jobs that train without a checkpoint for too long, or whose final one fails",
    ),
    ("stretto_gateway_stopped_jobs", "gauge", (), "training jobs whose workers have all stood still for too long"),
    ("stretto_gateway_spilling_servers", "gauge", (), "parameter servers with rows on their disks for lack of memory"),
    (
        "stretto_gateway_spill_faults",
        "gauge",
        (),
        "parameter servers whose rows find no room, neither in memory nor on disk",
    ),
    (
        "stretto_gateway_rounded_rows",
        "gauge",
        (),
        "rows that parameter servers keep rounded to bfloat16 for lack of memory",
    ),
    (
        "stretto_stream_fullness",
        "gauge",
        ("service", "stream"),
        "stored bytes over the bound of the bucket, the audit log",
    ),
    ("stretto_bus_refuses", "gauge", ("service",), "1: the bus stores nothing"),
    ("stretto_stream_damaged_messages", "gauge", ("service", "stream"), "messages of the stream that cannot be read"),
    (STARTS, "histogram", (), "time from submission to the first step, of the jobs in the view"),
)
"""Name, kind, labels and meaning of every metric of the gateway."""


def routes(gateway: Gateway) -> APIRouter:
    """Make the routes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/healthz")
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @router.get("/readyz")
    async def readyz() -> PlainTextResponse:
        stores = [gateway.bus.refuses] if gateway.bus.refuses else []
        found = [*stores, *warnings(gateway.fullness.shares).values(), *gateway.soundness.warnings]
        lines = [gateway.follower.lacks or "ready", *found]
        return PlainTextResponse("\n".join(lines) + "\n", 200 if gateway.follower.ready else 503)

    @router.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(exposition(gateway), media_type="text/plain; version=0.0.4")

    return router


def exposition(gateway: Gateway) -> str:
    """Return the metrics as Prometheus reads them."""
    projection = gateway.follower.projection
    spilling, faults = gateway.views.spilling_servers()
    states = Counter(view.status for view in projection.jobs.values())
    samples: dict[str, Iterable[str]] = {
        "stretto_gateway_ready": [f" {int(gateway.follower.ready)}"],
        "stretto_gateway_last_seq": [f" {projection.last_seq}"],
        "stretto_gateway_jobs": (f'{{status="{status}"}} {states[status]}' for status in get_args(Status)),
        "stretto_gateway_late_checkpoints": [f" {gateway.views.late_checkpoints()}"],
        "stretto_gateway_spilling_servers": [f" {spilling}"],
        "stretto_gateway_spill_faults": [f" {faults}"],
        "stretto_gateway_rounded_rows": [f" {gateway.views.rounded_rows()}"],
        "stretto_gateway_stopped_jobs": [f" {gateway.views.stopped_jobs()}"],
        "stretto_stream_fullness": (
            f'{{service="gateway",stream="{stream}"}} {share:g}' for stream, share in gateway.fullness.shares.items()
        ),
        "stretto_bus_refuses": [f'{{service="gateway"}} {int(bool(gateway.bus.refuses))}'],
        "stretto_stream_damaged_messages": (
            f'{{service="gateway",stream="{stream}"}} {damage.messages}'
            for stream, damage in gateway.soundness.damages.items()
        ),
        STARTS: _starts([waited_s for view in projection.jobs.values() if (waited_s := start_s(view)) is not None]),
    }
    lines = (
        line
        for name, kind, _, text in METRICS
        for line in (f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(name + each for each in samples[name]))
    )
    return "\n".join(lines) + "\n"


def _starts(waits_s: Sequence[float]) -> Iterator[str]:
    """Yield the histogram of the time to the first step, of all jobs in the view. Forgotten jobs leave the
    histogram."""
    for bound_s in START_BOUNDS_S:
        yield f'_bucket{{le="{bound_s:g}"}} {sum(waited_s <= bound_s for waited_s in waits_s)}'
    yield f'_bucket{{le="+Inf"}} {len(waits_s)}'
    yield f"_sum {sum(waits_s)}"
    yield f"_count {len(waits_s)}"

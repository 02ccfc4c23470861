"""``stretto trace``: the spans of a job's trace as a waterfall."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from stretto_client import figures

from ...command import command
from ...errors import CliError
from ...options import GatewayOptions, JobArgument, complaints

SIBLINGS_SHOWN = 3
WIDTH = 40


@command("See", "stretto trace ctr --all")
def trace(
    options: GatewayOptions,
    job: JobArgument,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show every span, not only the first few of each kind.")
    ] = False,
) -> None:
    """Show the trace of a job as a waterfall, beginning with its submission.

    The gateway reads the spans that services and pods of its machine keep, so the installation has to run (after
    `stretto down`: `stretto up`). Where services send them to a collector (OTEL_EXPORTER_OTLP_ENDPOINT), the gateway
    asks it (STRETTO_GATEWAY_TRACES_URL: Tempo or Jaeger); otherwise look there, and see the job's events here.
    """
    with options.connect() as gateway:
        found = gateway.trace(job)
        trace_id = found["trace_id"]
        if trace_id is None:
            raise CliError(f"{job} was submitted without a trace")
        spans = of_gateway(found)
    roots = tree(spans)
    options.answer(
        {"job": job, "trace_id": trace_id, "spans": [asdict(root) for root in roots]},
        lambda: render(roots, everything),
    )


def of_gateway(found: Any) -> list[TraceSpan]:
    """Return the spans that the gateway found, or without any its events."""
    if missing := found.get("missing"):
        complaints.print(f"[yellow]missing:[/yellow] {escape(missing)}")
    if spans := [span for each in found["spans"] if (span := parsed(each)) is not None]:
        return spans
    complaints.print(
        f"[dim]no span of trace {found['trace_id']} is kept there: events only; a collector may have it[/dim]"
    )
    return [of_event(event, found["trace_id"]) for event in found["events"]]


@dataclass(slots=True)
class TraceSpan:
    """One span; times are seconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str | None
    service: str
    name: str
    start_s: float
    end_s: float
    attributes: dict[str, Any]
    error: str | None
    children: list[TraceSpan] = field(default_factory=lambda: [])


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the waterfall. ``repeats``: number of later spans of the same name that are not shown."""

    depth: int
    span: TraceSpan
    repeats: int = 0
    until_s: float = 0.0


def of_event(event: dict[str, Any], trace_id: str) -> TraceSpan:
    """Return a span without length: an event of the job in its trace."""
    at_s = float(event["time_s"])
    return TraceSpan(
        trace_id, str(event["seq"]), None, str(event["service"]), str(event["event"]), at_s, at_s, {}, None
    )


def parsed(d: Any) -> TraceSpan | None:
    """Return a span as a service wrote it, or None if it is incomplete or none."""
    try:
        return TraceSpan(
            d["trace_id"],
            d["span_id"],
            d.get("parent_id"),
            d.get("service") or "",
            d["name"],
            float(d["start_s"]),
            float(d["end_s"]),
            d.get("attributes") or {},
            d.get("error"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def tree(spans: Iterable[TraceSpan]) -> list[TraceSpan]:
    """Return the root spans, oldest first, with their children. A span whose parent was not kept is a root."""
    by_id = {span.span_id: span for span in spans}
    roots: list[TraceSpan] = []
    for span in sorted(by_id.values(), key=lambda span: span.start_s):
        above = by_id.get(span.parent_id or "")
        (above.children if above is not None and above is not span else roots).append(span)
    return roots


def rows(roots: list[TraceSpan], everything: bool = False) -> Iterator[Row]:
    """Yield lines depth first; of many siblings of one name, the first few are shown and the others counted."""
    stack = list(reversed(_level(roots, 0, everything)))
    while stack:
        row = stack.pop()
        yield row
        if not row.repeats:
            stack.extend(reversed(_level(row.span.children, row.depth + 1, everything)))


def _level(spans: list[TraceSpan], depth: int, everything: bool) -> list[Row]:
    seen: dict[tuple[str, str], int] = {}
    made: list[Row] = []
    last: dict[tuple[str, str], int] = {}
    for span in spans:
        key = (span.service, span.name)
        seen[key] = seen.get(key, 0) + 1
        if everything or seen[key] <= SIBLINGS_SHOWN:
            made.append(Row(depth, span))
        elif seen[key] == SIBLINGS_SHOWN + 1:
            last[key] = len(made)
            made.append(Row(depth, span, 1, span.end_s))
        else:
            known = made[last[key]]
            made[last[key]] = Row(depth, known.span, known.repeats + 1, max(known.until_s, span.end_s))
    return made


def render(roots: list[TraceSpan], everything: bool = False) -> Table:
    """Render the waterfall: span, service, start and duration."""
    flat = list(rows(roots, everything))
    begin = min(row.span.start_s for row in flat)
    end = max(max(row.span.end_s, row.until_s) for row in flat)
    scale = (end - begin) or 1.0
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, justify in (("span", "left"), ("service", "left"), ("after", "right"), ("took", "right"), ("", "left")):
        made.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in flat:
        span, until = row.span, max(row.span.end_s, row.until_s)
        left = min(WIDTH - 1, int((span.start_s - begin) / scale * WIDTH))
        length = max(1, round((until - span.start_s) / scale * WIDTH))
        label = f"{'  ' * row.depth}{span.name}"
        if row.repeats:
            label = f"{'  ' * row.depth}… {row.repeats} more {span.name}"
        count = span.attributes.get("stretto.delivery") or span.attributes.get("delivery")
        mark = f" [yellow](delivery {escape(str(count))})[/yellow]" if count not in (None, 1) else ""
        error = f" [red]{escape(span.error)}[/red]" if span.error else ""
        colour = "red" if span.error else "dim cyan" if row.repeats else "cyan"
        made.add_row(
            escape(label) + mark + error,
            escape(span.service.removeprefix("stretto-")),
            figures.seconds(span.start_s - begin),
            "" if row.repeats else figures.seconds(span.end_s - span.start_s),
            f"{' ' * left}[{colour}]{'━' * min(length, WIDTH - left)}[/{colour}]",
        )
    return made

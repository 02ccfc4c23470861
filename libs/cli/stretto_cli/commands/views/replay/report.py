"""The report of a replay: a document for programs; for people, a table and each service's first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text
from stretto_client import figures
from stretto_messages.base import counted
from stretto_runtime.replay import Replayed, ReplayedDecision

from ....render import table

FIELDS_SHOWN = 12
TEXT_SHOWN = 60


def different(done: Replayed) -> list[ReplayedDecision]:
    """Return the decisions that differ, oldest first."""
    return [decision for decision in done.decisions if decision.verdict not in ("same", "not replayed")]


def reproduced(found: Sequence[Replayed]) -> bool:
    """Return whether nothing differs, and at least one decision was replayed if there were any."""
    decided = any(done.decisions for done in found)
    return all(done.reproduced for done in found) and (not decided or any(done.count("same") for done in found))


def document(job: str, found: Sequence[Replayed]) -> dict[str, Any]:
    """Return the report for programs."""
    return {"job": job, "reproduced": reproduced(found), "services": [_of_service(done) for done in found]}


def _of_service(done: Replayed) -> dict[str, Any]:
    body = asdict(done)
    del body["decisions"]
    return {
        **body,
        "decisions": len(done.decisions),
        "same": done.count("same"),
        "not_replayed": done.count("not replayed"),
        "differences": [
            {
                "id": decision.id,
                "seq": decision.seq,
                "time_s": decision.time_s,
                "event": decision.name,
                "verdict": decision.verdict,
                "version": decision.version,
                "fields": [{"field": f, "then": old, "now": new} for f, old, new in decision.differences()],
            }
            for decision in different(done)
        ],
    }


def for_people(job: str, found: Sequence[Replayed]) -> RenderableType:
    """Render the report for people: a line per service, then each one's first difference field by field."""
    made = table(
        "service",
        "reproduced",
        "other",
        "not replayed",
        "inputs",
        "version then",
        "now",
        right=("reproduced", "other", "not replayed", "inputs"),
    )
    for done in found:
        total, same, other = len(done.decisions), done.count("same"), len(different(done))
        then = sorted({decision.version for decision in done.decisions if decision.version is not None})
        made.add_row(
            done.service,
            f"[{'red' if other else 'green'}]{same} of {total}[/]" if total else "[dim]nothing decided[/dim]",
            str(other or ""),
            str(done.count("not replayed") or ""),
            f"{done.inputs:,}",
            ", ".join(map(str, then)) or "–",
            str(done.version),
        )
    parts: list[RenderableType] = [Text.from_markup(f"[bold]{escape(job)}[/bold] decided again"), made]
    for done in found:
        parts += [Text(f"{done.service}: {what}", style="yellow") for what in done.missing]
    for done in found:
        if other := different(done):
            parts += _first(done, other)
    parts.append(Text.from_markup(_verdict(found)))
    return Group(*parts)


def _verdict(found: Sequence[Replayed]) -> str:
    """Say in a line whether the decisions are the same."""
    decided, same = sum(len(done.decisions) for done in found), sum(done.count("same") for done in found)
    missed = sum(done.count("not replayed") for done in found)
    rest = f"; {counted(missed, 'decision')} could not be decided again" if missed else ""
    if other := sum(len(different(done)) for done in found):
        return f"[red bold]not the same[/red bold]: {other:,} of {counted(decided, 'decision')} differ{rest}"
    if not same:
        return "nothing was decided yet" if not decided else f"[yellow bold]nothing was compared[/yellow bold]{rest}"
    return f"[green bold]the same, byte for byte[/green bold]: {counted(same, 'decision')}{rest}"


def _first(done: Replayed, other: Sequence[ReplayedDecision]) -> list[RenderableType]:
    first = other[0]
    more = f", and {len(other) - 1} more after it" if len(other) > 1 else ""
    title = (
        f"[red]{done.service}[/red]: {first.name} at {figures.clock(first.time_s)} (input {first.seq}) {first.verdict}"
        f"{' by this code' if first.verdict == 'differs' else ''}{more}"
    )
    made = table("  field", "then", "now", wrapped="now")
    rows = first.differences()
    for name, old, new in rows[:FIELDS_SHOWN]:
        made.add_row(f"  {escape(name)}", _short(old), _short(new))
    parts: list[RenderableType] = [Text.from_markup(f"\n{title}"), made]
    if len(rows) > FIELDS_SHOWN:
        parts.append(Text(f"  … and {len(rows) - FIELDS_SHOWN} more fields; -o json prints all", style="dim"))
    return parts


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return escape(text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…")

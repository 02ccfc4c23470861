"""The timeline of a job under fire: one HTML file that loads nothing, with lanes over time drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from stretto_cli.page import head
from stretto_cli.page import page as whole
from stretto_client import figures
from stretto_client.drawing import svg

from . import effects, report
from .course import Happening, JobEnd
from .schedule import KINDS

LEFT, WIDTH, RIGHT = 150.0, 1000.0, 24.0
ROW, BAR = 19.0, 11.0
GAP_LOW_S, GAP_HIGH_S = 0.02, 30.0
"""Range of the lane of pauses, which is logarithmic."""
SIGNS = (
    ("fault", "fault, until it is healed"),
    ("change", "change of the plan, until it is applied"),
    ("moved", "parameters move"),
    ("back", "parameters lost, until a checkpoint is restored"),
    ("stored", "checkpoint"),
    ("silent", "no worker trains"),
)
VIOLENT = {"killed", "oom-killed", "failed", "vanished"}
Json = dict[str, Any]
Lane = Callable[["Canvas"], None]


@dataclass(slots=True)
class Canvas:
    """The drawing: its shapes, and where the next lane begins. ``y`` grows downwards."""

    outcome: JobEnd
    begin_s: float
    end_s: float
    shapes: list[str]
    y: float = 0.0

    def x(self, time_s: float) -> float:
        share = (time_s - self.begin_s) / max(self.end_s - self.begin_s, 1e-9)
        return LEFT + WIDTH * min(max(share, 0.0), 1.0)

    def at(self, time_s: float) -> str:
        return f"{time_s - self.begin_s:.1f} s"

    def add(self, *shapes: str) -> None:
        self.shapes.extend(shapes)

    def label(self, name: str, detail: str = "") -> None:
        self.add(svg.text(LEFT - 12, self.y + BAR, name, "name"))
        if detail:
            self.add(svg.text(LEFT - 12, self.y + BAR + 13, detail, "detail"))

    def span(self, begin_s: float, end_s: float, style: str, title: str, height: float = BAR) -> None:
        x = self.x(begin_s)
        self.add(svg.rect(x, self.y + (BAR - height) / 2 + 2, self.x(end_s) - x, height, style, title))


def page(document: Json, outcomes: Sequence[JobEnd]) -> str:
    """Return the whole file. ``document`` is :func:`report.build` of ``outcomes``."""
    parts = [_head(document)]
    if len(outcomes) > 1:
        parts.append(_overview(document))
    for index, (one, outcome) in enumerate(zip(document["runs"], outcomes, strict=True)):
        opened = " open" if index == 0 or not one["exact"] else ""
        parts.append(f'<details id="{escape(one["job"])}"{opened}><summary>{_title(one)}</summary>')
        parts += [_figure(outcome), _legend(), _table(one), "</details>"]
    return whole("Stretto under fire", parts)


# words ---------------------------------------------------------------------------------------------------------


def _head(document: Json) -> str:
    runs = document["runs"]
    books = [one["books"] for one in runs if one["books"]]
    faults = sum(not h["skipped"] and not h["planned_change"] for one in runs for h in one["happenings"])
    tiles = [
        ("faults", f"{faults:,}"),
        ("jobs exact", f"{sum(one['exact'] for one in runs)} of {len(runs)}"),
        ("samples applied", f"{sum(b['applied'] for b in books):,}"),
        ("lost", f"{sum(b['lost'] for b in books):,}" if books else "–"),
        ("repeated", f"{sum(b['repeated'] for b in books):,}" if books else "–"),
    ]
    verdict = ("good", "nothing lost, nothing repeated") if document["passed"] else ("bad", "not exact")
    return head(f'Under fire <em class="{verdict[0]}">{verdict[1]}</em>', document["command"], tiles)


def _title(one: Json) -> str:
    mark = '<em class="good">exact</em>' if one["exact"] else '<em class="bad">not exact</em>'
    seed = "undisturbed" if one["seed"] is None else f"seed {one['seed']}, {one['intensity']}"
    quality = one["evaluation"]
    figures_text = f"; loss {quality['loss']:.5f}, AUC {quality['auc']:.4f}" if quality else ""
    return f"<b>{escape(one['job'])}</b> {seed}: {mark} in {figures.seconds(one['took_s'])}{figures_text}"


def _legend() -> str:
    return f'<p class="legend">{" ".join(f"<i class={style}></i>{escape(meaning)}" for style, meaning in SIGNS)}</p>'


def _overview(document: Json) -> str:
    rows: list[str] = []
    for one in document["runs"]:
        books, quality = one["books"] or {}, one["evaluation"] or {}
        done = [h for h in one["happenings"] if not h["skipped"] and not h["planned_change"]]
        pause = max((h["longest_pause_s"] for h in done if h["longest_pause_s"] is not None), default=None)
        rows.append(
            _row(
                f'<a href="#{escape(one["job"])}">{escape(one["job"])}</a>',
                str(len(done)),
                _count(books.get("lost")),
                _count(books.get("repeated")),
                figures.seconds(pause),
                figures.seconds(one["took_s"]),
                f"{quality['loss']:.5f}" if quality else "–",
                f"{quality['auc']:.4f}" if quality else "–",
                '<em class="good">exact</em>' if one["exact"] else '<em class="bad">not exact</em>',
            )
        )
    head = _row("job", "faults", "lost", "repeated", "longest pause", "took", "loss", "AUC", "", cell="th")
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _table(one: Json) -> str:
    rows: list[str] = []
    for h in one["happenings"]:
        kind = "change" if h["planned_change"] else "fault"
        if h["skipped"]:
            cells = [f'<span class="dim">passed over: {escape(h["skipped"])}</span>', "", "", "", ""]
        else:
            again = h["trained_again_after_s"]
            cells = [
                escape(h["on"]),
                figures.seconds(h["at_s"]),
                figures.seconds(h["healed_after_s"]) if h["healed"] else "not healed",
                figures.seconds(h["longest_pause_s"]),
                "never stopped" if again == 0 else figures.seconds(again),
            ]
        rows.append(_row(str(h["number"]), f'<span class="{kind}">{escape(h["title"])}</span>', *cells))
    head = _row("#", "what", "on", "at", "healed after", "longest pause", "trained again after", cell="th")
    found = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""
    if books := one["books"]:
        names = ("samples", "assigned", "reported", "applied", "lost", "repeated", "recognised")
        head = _row(*names[:-1], "pushed again and recognised", "columns exact", cell="th")
        row = _row(*(f"{books[name]:,}" for name in names), f"{books['columns_exact']} of {books['columns']}")
        found += f"<table><thead>{head}</thead><tbody>{row}</tbody></table>"
    return found + "".join(f'<p class="bad">{escape(finding)}</p>' for finding in one["findings"])


def _row(*cells: str, cell: str = "td") -> str:
    return "<tr>" + "".join(f"<{cell}>{content}</{cell}>" for content in cells) + "</tr>"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


# lanes ---------------------------------------------------------------------------------------------------------


def _figure(outcome: JobEnd) -> str:
    canvas = Canvas(outcome, outcome.began_s, max(outcome.ended_s, outcome.began_s + 1), [], 26)
    lanes: list[Lane] = [_faults, _throughput, _progress, _plan, _pods, _services, _parameters, _pauses]
    for lane in lanes:
        lane(canvas)
    height = canvas.y + 10
    grid = _grid(canvas, height)
    return svg.figure(LEFT + WIDTH + RIGHT, height, "timeline", [*grid, *canvas.shapes])


def _grid(canvas: Canvas, height: float) -> list[str]:
    """Draw the axis in seconds, and a thin line through all lanes for each fault."""
    length_s = canvas.end_s - canvas.begin_s
    step_s = next(step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 10**9) if length_s / step <= 14)
    shapes: list[str] = []
    for index in range(int(length_s / step_s) + 1):
        x = canvas.x(canvas.begin_s + index * step_s)
        shapes += [svg.line(x, 20, x, height - 6, "grid"), svg.text(x, 14, f"{index * step_s} s", "tick")]
    for one in _done(canvas.outcome):
        x = canvas.x(one.at_s or 0.0)
        shapes.append(svg.line(x, 22, x, height - 6, "change-line" if one.planned.planned else "fault-line"))
    return shapes


def _done(outcome: JobEnd) -> list[Happening]:
    return [one for one in outcome.happenings if one.at_s is not None and not one.skipped]


def _faults(canvas: Canvas) -> None:
    """Draw the faults; two that overlap are in different rows."""
    canvas.label("faults", "and changes of plan")
    free_at: list[float] = []
    top = canvas.y
    for one in sorted(_done(canvas.outcome), key=lambda one: one.at_s or 0.0):
        begin_s = one.at_s or 0.0
        end_s = one.healed_s or (canvas.end_s if not one.well else begin_s)
        words = f"{one.planned.number} {one.planned.kind} {one.on}"
        until_x = max(canvas.x(end_s), canvas.x(begin_s) + 6.2 * len(words[:44]) + 10)
        row = next((n for n, x in enumerate(free_at) if x <= canvas.x(begin_s)), len(free_at))
        free_at[row:] = [*([until_x] if row == len(free_at) else [until_x, *free_at[row + 1 :]])]
        canvas.y = top + row * ROW
        style = "change" if one.planned.planned else "fault"
        healed = f"healed after {end_s - begin_s:.1f} s" if one.well else "not healed"
        canvas.span(
            begin_s,
            end_s,
            style,
            f"{one.planned.number}. {KINDS[one.planned.kind].title}: {one.on}\nat {canvas.at(begin_s)}, {healed}",
            14,
        )
        canvas.add(svg.text(canvas.x(begin_s) + 4, canvas.y + 12, words[:44], "on-bar"))
    canvas.y = top + max(len(free_at), 2) * ROW + 8


def _chart(canvas: Canvas, points: list[tuple[float, float]], height: float, style: str, unit: str) -> None:
    most = max((value for _, value in points), default=0.0) or 1.0
    base = canvas.y + height
    placed = [(canvas.x(time_s), base - height * value / most) for time_s, value in points]
    canvas.add(
        svg.line(LEFT, base, LEFT + WIDTH, base, "axis"),
        svg.area(placed, base, f"{style} area"),
        svg.polyline(placed, f"{style} line"),
    )
    for (time_s, value), (x, _) in zip(points, placed, strict=True):
        canvas.add(svg.rect(x - 3, canvas.y, 6, height, "ghost", f"{canvas.at(time_s)}: {value:,.0f} {unit}", 0))
    canvas.add(svg.text(LEFT - 12, canvas.y + BAR + 13, f"top {figures.short(most)} {unit}", "detail"))
    canvas.y = base + 14


def _throughput(canvas: Canvas) -> None:
    canvas.label("throughput")
    points = effects.throughput(canvas.outcome.record.workers, canvas.begin_s, canvas.end_s)
    _chart(canvas, points, 70, "speed", "samples/s")


def _progress(canvas: Canvas) -> None:
    """Draw the trained samples; they fall where the job returned to a checkpoint."""
    canvas.label("trained")
    points = [(time_s, float(done)) for time_s, done in canvas.outcome.record.progress]
    _chart(canvas, points, 44, "done", "samples")


def _plan(canvas: Canvas) -> None:
    """Draw the number of running pods of each role, and the plan's."""
    record = canvas.outcome.record
    for role, field in (("worker", "workers"), ("ps", "ps")):
        canvas.label({"worker": "workers", "ps": "servers"}[role], "run · wanted")
        wanted = [(fact.time_s, int(fact.data["plan"][field])) for fact in record.facts if fact.name == "plan-decided"]
        changes: list[tuple[float, int]] = []
        for pod in record.pods.values():
            if pod.role == role:
                changes += [(pod.started_s, 1), *([(pod.exited_s, -1)] if pod.exited_s is not None else [])]
        running: list[tuple[float, int]] = []
        for time_s, change in sorted(changes):
            running.append((time_s, (running[-1][1] if running else 0) + change))
        most = max([count for _, count in (*wanted, *running)], default=1)
        base, height = canvas.y + 26, 24.0
        for series, style in ((wanted, "wanted"), (running, role)):
            points: list[tuple[float, float]] = []
            for index, (time_s, count) in enumerate(series):
                end_s = series[index + 1][0] if index + 1 < len(series) else canvas.end_s
                y = base - height * count / max(most, 1)
                points += [(canvas.x(time_s), y), (canvas.x(end_s), y)]
                title = f"{count} {field} {'wanted' if style == 'wanted' else 'run'} from {canvas.at(time_s)}"
                canvas.add(svg.rect(canvas.x(time_s), y - 3, canvas.x(end_s) - canvas.x(time_s), 6, "ghost", title, 0))
            canvas.add(svg.polyline(points, f"{style} line"))
        canvas.y = base + 10


def _pods(canvas: Canvas) -> None:
    """Draw the pods' lives, how each ended, and when a fault held it up."""
    record = canvas.outcome.record
    for pod in sorted(record.pods.values(), key=lambda pod: (pod.role == "ps", int(pod.name.rpartition("-")[2]))):
        canvas.label(pod.name)
        end_s = pod.exited_s or canvas.end_s
        ended = f"{pod.reason} at {canvas.at(end_s)}" if pod.exited_s else "to the end"
        canvas.span(pod.started_s, end_s, pod.role, f"{pod.name}: from {canvas.at(pod.started_s)}, {ended}")
        for one in _done(canvas.outcome):
            if one.on.split(" ")[0].rstrip(",") == pod.name and one.planned.lasts_s and one.healed_s is not None:
                title = f"{KINDS[one.planned.kind].title}, {one.healed_s - (one.at_s or 0):.1f} s"
                canvas.span(one.at_s or 0.0, one.healed_s, "held", title, BAR + 4)
        if pod.exited_s is not None and pod.reason in VIOLENT:
            canvas.add(svg.cross(canvas.x(end_s), canvas.y + 2 + BAR / 2, 4, "violent", f"{pod.name} {pod.reason}"))
        canvas.y += ROW - 2
    canvas.y += 8


def _services(canvas: Canvas) -> None:
    """Draw the services that were hit, from the fault until they were ready again."""
    hit: dict[str, list[Happening]] = {}
    for one in _done(canvas.outcome):
        if one.planned.service:
            hit.setdefault(one.planned.service, []).append(one)
    for name, blows in sorted(hit.items()):
        canvas.label(name)
        canvas.span(canvas.begin_s, canvas.end_s, "service", f"{name} runs", 5)
        for one in blows:
            end_s = one.healed_s or canvas.end_s
            title = f"{KINDS[one.planned.kind].title}: {name} away for {end_s - (one.at_s or 0):.1f} s"
            canvas.span(one.at_s or 0.0, end_s, "fault", title)
        canvas.y += ROW - 2
    canvas.y += 8


def _parameters(canvas: Canvas) -> None:
    """Draw migrations, checkpoints, and the times without parameters until a checkpoint was restored."""
    facts = canvas.outcome.record.facts
    canvas.label("parameters", "moved · saved · back")
    begun: Json | None = None
    began_s, lost_s = 0.0, None
    base = canvas.y
    for fact in facts:
        canvas.y = base
        if fact.name == "migration-started":
            begun, began_s = fact.data, fact.time_s
        elif fact.name == "migration-finished" and begun is not None:
            title = f"{begun['buckets']} buckets, {figures.size(fact.data['moved_bytes'])}, "
            title += f"{', '.join(begun['sources'])} → {', '.join(begun['destinations'])} in "
            title += f"{figures.seconds(fact.data['took_s'])}, longest freeze "
            title += figures.seconds(fact.data["longest_freeze_s"])
            canvas.span(began_s, fact.time_s, "moved", title)
            begun = None
        elif fact.name in ("checkpoint-saved", "checkpoint-flushed", "checkpoint-failed"):
            style = {"checkpoint-saved": "saved", "checkpoint-flushed": "stored"}.get(fact.name, "violent-fill")
            what = fact.data.get("checkpoint", fact.data)
            title = f"{fact.name} {what['id']} at {canvas.at(fact.time_s)} {fact.data.get('reason', '')}"
            canvas.add(svg.dot(canvas.x(fact.time_s), canvas.y + 26, 3.5, style, title))
        elif fact.name == "servers-changed" and not fact.data["servers"]:
            lost_s = fact.time_s if lost_s is None else lost_s
            if begun is not None:
                canvas.span(began_s, fact.time_s, "moved broken", "a migration that ended with its servers")
                begun = None
        elif fact.name == "parameters-lost":
            lost_s = fact.time_s if lost_s is None else lost_s
        elif fact.name == "columns-restored" and lost_s is not None:
            title = f"{fact.data['columns']} columns back from {fact.data['checkpoint']['id']} after "
            title += f"{fact.time_s - lost_s:.1f} s, while all others went on"
            canvas.span(lost_s, fact.time_s, "back", title)
            lost_s = None
        elif fact.name == "checkpoint-restored" and lost_s is not None:
            title = f"back to {fact.data['checkpoint']['id']} ({fact.data['checkpoint']['samples']:,} samples) on "
            title += f"{fact.data['ps']} servers after {fact.time_s - lost_s:.1f} s"
            canvas.span(lost_s, fact.time_s, "back", title)
            lost_s = None
    canvas.y = base + 44


def _pauses(canvas: Canvas) -> None:
    """Draw the longest pause between two steps in each window of each worker, on a logarithmic scale."""
    canvas.label("pauses", "of each worker")
    height = 64.0
    base = canvas.y + height
    span = math.log(GAP_HIGH_S / GAP_LOW_S)
    for level in (0.1, 1.0, 10.0):
        y = base - height * math.log(level / GAP_LOW_S) / span
        canvas.add(
            svg.line(LEFT, y, LEFT + WIDTH, y, "grid"), svg.text(LEFT + WIDTH + 2, y + 3, f"{level:g} s", "tick-left")
        )
    for one in canvas.outcome.record.workers:
        if one.steps:
            gap_s = min(max(one.longest_gap_s, GAP_LOW_S), GAP_HIGH_S)
            y = base - height * math.log(gap_s / GAP_LOW_S) / span
            title = f"{one.pod}: {figures.seconds(one.longest_gap_s)} between two steps, in the second to "
            title += canvas.at(one.ended_at_s)
            canvas.add(svg.dot(canvas.x(one.ended_at_s), y, 2.6, "pause long" if gap_s > 1 else "pause", title))
    for silent in effects.stalls(canvas.outcome.record.workers, report.trained_until(canvas.outcome)):
        title = f"no worker trained for {silent.length_s:.1f} s from {canvas.at(silent.begin_s)}"
        x = canvas.x(silent.begin_s)
        canvas.add(svg.rect(x, canvas.y, canvas.x(silent.end_s) - x, height, "silent", title, 0))
    canvas.y = base + 8

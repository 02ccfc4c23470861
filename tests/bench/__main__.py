"""``make bench``: measure ratios against baselines of the same run; write a table and bench-results/bench.json.

Each module of :data:`places.MODULES` has ``run() -> list[Row]``, and may name the papers' claims that its rows check
(claims.py; bench-results/claims.md). ``--only NAME`` measures one module and keeps the last results of all others. The
exit status is 1 when a bar is missed or a module could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import claims, places
from tests.bench.rows import Row, row

RESULTS = places.ROOT / "bench-results" / "bench.json"


def measure(module: str) -> dict[str, Any]:
    """Return the rows of one module, with the time and the load of the machine."""
    result: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average_before": round(os.getloadavg()[0], 2),
        "loop_ms": round(loop_ms(), 1),
    }
    begin = time.perf_counter()
    try:
        rows = [checked(each) for each in places.module(module).run()]
    except Exception as error:
        traceback.print_exc()
        rows = [failed(module, error)]
    return {**result, "took_s": round(time.perf_counter() - begin, 1), "rows": rows}


def loop_ms() -> float:
    """Return the processor time of a million turns of a loop, to which figures in ms are proportional."""

    def once() -> float:
        begin = time.process_time()
        sum(number * number % 7 for number in range(1_000_000))
        return time.process_time() - begin

    return 1000 * min(once() for _ in range(5))


def checked(given: Mapping[str, Any]) -> Row:
    """Return a row with every column. ValueError names the missing or unknown ones."""
    wanted = Row.__required_keys__
    if given.keys() != wanted:
        raise ValueError(f"row {given.get('name')}: columns {sorted(given.keys() ^ wanted)} are missing or unknown")
    return Row(**given)


def failed(module: str, error: Exception) -> Row:
    lines = str(error).strip().splitlines() or [""]
    note = f"could not be measured: {type(error).__name__}: {lines[-1][:300]}"
    return row(module, float("nan"), "", "", False, note)


def table(results: dict[str, Any]) -> Table:
    shown = Table(title="Stretto, measured", title_justify="left", header_style="bold")
    loops = [result["loop_ms"] for result in results.values() if "loop_ms" in result]
    if loops:
        shown.caption = f"a million turns of a loop took {min(loops):.0f} to {max(loops):.0f} ms of processor time"
    for column in ("what", "value", "baseline", "ratio", "bar", "", "note"):
        shown.add_column(column, justify="right" if column in ("value", "baseline", "ratio") else "left")
    for result in results.values():
        for each in result["rows"]:
            verdict = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}[each["ok"]]
            figures = [_figure(each[column]) for column in ("value", "baseline", "ratio")]
            value = f"{figures[0]} {each['unit']}".strip()
            shown.add_row(each["name"], value, figures[1], figures[2], each["bar"], verdict, each["note"])
        shown.add_section()
    return shown


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def save(results: dict[str, Any], path: Path) -> None:
    """Write the results; a figure that could not be measured is null, since JSON has no NaN."""
    machine = {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}
    text = json.dumps({"machine": machine, "results": _without_nan(results)}, indent=2, allow_nan=False)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and value != value else value


def earlier(path: Path) -> dict[str, Any]:
    """Return the results of the last runs, by module."""
    return json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    every = [name for names in places.MODULES.values() for name in names]
    parser.add_argument("--only", choices=every, metavar="NAME", help=f"measure this one alone: {', '.join(every)}")
    only = parser.parse_args().only
    console = Console(width=None if sys.stdout.isatty() else 160)
    modules = [only] if only else every
    results: dict[str, Any] = {}
    for module in modules:
        console.print(f"measuring {module} …", style="dim")
        results[module] = measure(module)
    console.print(table(results))
    if (told := claims.table(results)) is not None:
        console.print(told)
    known = {**earlier(RESULTS), **results} if only else results
    save(known, RESULTS)
    RESULTS.with_name("claims.md").write_text(claims.markdown(known), encoding="utf-8")
    console.print(f"written: {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")
    return 0 if all(each["ok"] is not False for result in results.values() for each in result["rows"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())

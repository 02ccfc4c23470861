"""Real /metrics, scraped during a fault and replayed to promtool in time lapse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.charts.rendering import CHART
from tests.charts.test_dashboards import selectors

ALERTS = CHART / "alerts.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
LAPSE = 20
"""Seconds that Prometheus counts for each real one: `for: 10m` fits into half a minute, and a successor of a dead owner
still takes over within `for: 1m`, where leases are as short as they may be. The lapse errs on the strict side: a
restart, a takeover or a late message fills twenty times the share of a window, so what is quiet here is quieter in real
time. Ages, counts and shares are compared as they were scraped. A rate is real events over lapsed time; a run that
needs one states it per lapsed minute."""
SCRAPE_S = int(
    yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["serviceMonitor"]["interval"].rstrip("s")
)
BEAT_S = SCRAPE_S / LAPSE
ANSWER_S = 3.0
"""A process that answers no scrape within this real time has no sample: frozen, or gone."""
MOMENTS = ("stretto_certificate_end_seconds",)
"""Metrics that are moments of the wall clock; promtool's clock begins at 0 when the recording begins."""
FIRED = 'group by (alertname) (last_over_time(ALERTS{alertstate="firing"}[1d]))'
FIRING = 'group by (alertname) (ALERTS{alertstate="firing"})'

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


@cache
def asked() -> frozenset[str]:
    """Return the names of the metrics that the rules read."""
    return frozenset(str(each.name) for rule in RULES for each in selectors(rule["expr"])[0])


class Recording:
    """All samples of one run, by the beat at which they were asked for."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self._began_s = time.time()
        self._beats: list[dict[Series, float]] = []
        self._targets: dict[str, str] = {}
        self._scrapes: set[asyncio.Task[None]] = set()

    def add(self, instance: str, url: str) -> None:
        """Scrape a process from now on."""
        self._targets[instance] = url

    def mark(self, name: str) -> None:
        """Name the last beat that was answered before now."""
        self.marks[name] = max(0, len(self._beats) - 2)

    async def run(self) -> None:
        """Scrape every target at each beat until cancelled; a slow answer does not delay the next beat."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as http:
            try:
                while True:
                    beat: dict[Series, float] = {}
                    self._beats.append(beat)
                    for instance, url in self._targets.items():
                        task = asyncio.create_task(self._scrape(http, beat, instance, url))
                        self._scrapes.add(task)
                        task.add_done_callback(self._scrapes.discard)
                    await asyncio.sleep(begin_s + len(self._beats) * BEAT_S - loop.time())
            finally:
                await asyncio.gather(*self._scrapes, return_exceptions=True)

    async def _scrape(self, http: httpx.AsyncClient, beat: dict[Series, float], instance: str, url: str) -> None:
        with contextlib.suppress(httpx.HTTPError):
            answer = await http.get(f"{url}/metrics")
            beat |= samples_of(answer.text, instance, self._began_s)

    def series(self) -> list[dict[str, str]]:
        """Return the input series of promtool. A series that a scrape no longer has is stale, as in Prometheus."""
        found = sorted({key for beat in self._beats for key in beat})
        return [{"series": _named(key), "values": " ".join(self._values(key))} for key in found]

    def _values(self, key: Series) -> list[str]:
        values, before = list[str](), False
        for beat in self._beats:
            value = beat.get(key)
            values.append(_number(value) if value is not None else "stale" if before else "_")
            before = value is not None
        return values

    def minute(self, name: str) -> float:
        """Return the minute of the lapse of a mark."""
        return self.marks[name] * SCRAPE_S / 60

    @property
    def end_minute(self) -> float:
        return (len(self._beats) - 1) * SCRAPE_S / 60


def samples_of(text: str, instance: str, began_s: float) -> dict[Series, float]:
    """Return the samples that the rules read."""
    lines = [line for line in text.splitlines() if re.split(r"[{ ]", line, maxsplit=1)[0] in asked()]
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = tuple(sorted({**sample.labels, "instance": instance}.items()))
            found[sample.name, labels] = sample.value - (began_s if sample.name in MOMENTS else 0.0)
    return found


def unexpected(recording: Recording, expected: Sequence[tuple[str, float, frozenset[str]]], folder: Path) -> str:
    """Evaluate the alerts over a recording; return what promtool says if they are not the expected ones, else "".

    ``expected``: an expression, the minute at which it is evaluated, and the alerts that it must give, exactly.
    """
    tests = [
        {
            "expr": expression,
            "eval_time": f"{round(minute * 60)}s",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }
        for expression, minute, names in expected
    ]
    test = {"interval": f"{SCRAPE_S}s", "input_series": recording.series(), "promql_expr_test": tests}
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": f"{SCRAPE_S}s", "tests": [test]}
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump(document, width=2**20))
    command = [promtool(), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def promtool() -> str:
    """Return the command; empty if there is none."""
    return shutil.which("promtool") or ""


def _named(key: Series) -> str:
    name, labels = key
    return f"{name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in labels)}}}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.6f}".rstrip("0").rstrip(".")


def settings_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a process for these settings."""
    return {f"STRETTO_{name.upper()}": str(value) for name, value in settings.items()}

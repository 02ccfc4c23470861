"""The dashboards ask only for metrics and labels that the services really show."""

from __future__ import annotations

import json
import re
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggregateExpr, Expr, VectorSelector, parse, walk
from stretto_bus.reading.damage import Damage
from stretto_forwarder.service import EndpointMetrics
from stretto_gateway.http.health import exposition
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.service import Gateway
from stretto_runtime.process.telemetry import Metrics

from tests.charts.rendering import CHART, EVERYTHING, of_kind, rendered

DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
OF_PROMETHEUS = {"instance", "namespace", "pod", "job"}
"""labels that it adds to whatever it scrapes"""


@cache
def shown() -> dict[str, set[str]]:
    """name -> labels, of everything at the /metrics of services, gateway and forwarder."""
    metrics, forwarder = Metrics("oom"), EndpointMetrics()
    metrics.dead_letters.labels("oom", "because").inc()
    metrics.replica_lag.labels("oom", "STRETTO", "nats-2").set(0)
    for each in (forwarder.delivered, forwarder.failures, forwarder.letters, forwarder.pending, forwarder.stopped):
        each.labels("crm")
    parts = {
        "follower": SimpleNamespace(ready=True, projection=Projection()),
        "views": SimpleNamespace(
            **dict.fromkeys(("late_checkpoints", "stopped_jobs", "rounded_rows"), lambda: 0),
            spilling_servers=lambda: (0, 0),
        ),
        "fullness": SimpleNamespace(shares={"AUDIT": 0.1}),
        "bus": SimpleNamespace(refuses=""),
        "soundness": SimpleNamespace(damages={"STRETTO": Damage("STRETTO", ((1, 1),))}),
    }
    gateway = cast(Gateway, SimpleNamespace(**parts))
    found: dict[str, set[str]] = {}
    for text in (metrics.text().decode(), forwarder.text().decode(), exposition(gateway)):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Return the expressions that Prometheus gets, after Grafana's substitution of its variables."""
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    values = [re.sub(r"^label_values\((.*), (\w+)\)$", r"group by (\2) (\1)", each) for each in asked]
    return [re.sub(r"\$__(range|interval|rate_interval)\b", "5m", each) for each in values]


def selectors(expression: str) -> tuple[list[VectorSelector], set[str]]:
    """Return the selected metrics and the labels of grouping. Raises ValueError if it is no PromQL."""
    selected: list[VectorSelector] = []
    grouped: set[str] = set()

    def visit(part: Expr) -> None:
        if isinstance(part, VectorSelector):
            selected.append(part)
        elif isinstance(part, AggregateExpr) and part.modifier is not None:
            grouped.update(part.modifier.labels)

    walk(parse(expression), visit)
    return selected, grouped


def is_answered(expression: str) -> None:
    selected, grouped = selectors(expression)
    assert selected, expression
    for each in selected:
        assert each.name in shown(), f"{each.name}: nobody shows it"
        assert {matcher.name for matcher in each.matchers.matchers} <= shown()[each.name] | OF_PROMETHEUS, expression
    everywhere = {label for each in selected for label in shown()[str(each.name)]}
    assert grouped - {"le"} <= everywhere | OF_PROMETHEUS, expression


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
class TestADashboard:
    def test_asks_for_what_is_shown(self, path: Any) -> None:
        for expression in expressions(json.loads(path.read_text())):
            is_answered(expression)

    def test_has_panels_that_do_not_overlap(self, path: Any) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(path.read_text())["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= 24, panel["title"]
            taken |= cells

    def test_is_a_config_map_that_grafana_finds(self, path: Any) -> None:
        found = [each for each in of_kind(rendered(EVERYTHING), "ConfigMap") if path.name in each["data"]]
        assert len(found) == 1
        assert found[0]["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(found[0]["data"][path.name]) == json.loads(path.read_text())


def test_every_metric_is_on_a_dashboard() -> None:
    asked = " ".join(expression for path in DASHBOARDS for expression in expressions(json.loads(path.read_text())))
    bookkeeping = ("_created", "_sum", "_count")
    assert [name for name in shown() if not name.endswith(bookkeeping) and name not in asked] == []


def test_keda_asks_for_a_backlog_that_the_service_shows() -> None:
    (scaled,) = of_kind(rendered(EVERYTHING), "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    is_answered(trigger["metadata"]["query"])
    assert 'service="planner"' in trigger["metadata"]["query"]

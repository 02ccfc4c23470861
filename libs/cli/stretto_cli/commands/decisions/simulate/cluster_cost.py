"""`--report cost` of `simulate cluster`: what the jobs cost, beside the plans that their users stated and a bound."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from stretto_client import figures
from stretto_sim.costs import CostComparison, Costs

from ....render import table


def document_of(found: CostComparison) -> dict[str, Any]:
    """Return the comparison as a document."""
    return {
        "policy": _costs(found.policy),
        "as_stated": _costs(found.stated),
        "saved": found.saved if found.stated.samples else None,
        "least_per_million_samples": found.least_per_million,
        "gap": found.gap,
    }


def _costs(costs: Costs) -> dict[str, Any]:
    return {
        "cost": costs.cost,
        "completed": costs.completed,
        "per_million_samples": costs.per_million if costs.samples else None,
        "p95_completion_s": costs.p95_completion_s,
    }


def view(result: dict[str, Any], policy: str) -> RenderableType:
    """Return the comparison as a table, the policy first."""
    made = table("plans", "cost", "a million samples", "of 95 % within", "completed")
    for name, costs in ((policy, result["policy"]), ("as stated", result["as_stated"])):
        each = costs["per_million_samples"]
        made.add_row(
            name,
            f"{costs['cost']:,.2f}",
            "–" if each is None else f"{each:.4g}",
            figures.seconds(costs["p95_completion_s"]),
            f"{costs['completed']:,}",
        )
    saved = "" if result["saved"] is None else f"{result['saved']:+.1%} saved; "
    made.caption = (
        f"{saved}no plans train these samples below {result['least_per_million_samples']:.4g} a million: at most"
        f" {result['gap']:.1%} are missing; 95 % are of the jobs that complete with both"
    )
    return made

"""``stretto simulate``: run traces of jobs under the decisions, to compare policies before choosing one.

One module per kind of cluster, its page beside it (``*_report``); :mod:`.traces` reads the traces.
"""

from __future__ import annotations

import typer

from ...options import example
from . import allocation, cluster, data_workers

GROUP = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    GROUP.command(
        "allocation",
        epilog=example("stretto simulate allocation trace.csv --nodes 110 --allocator marginal-doubling --report out"),
    )(allocation.allocation)
    GROUP.command("data-workers", epilog=example("stretto simulate data-workers trace.csv --policy srtf --report out"))(
        data_workers.data_workers
    )
    GROUP.command(
        "cluster", epilog=example("stretto simulate cluster arrivals.csv --policy es --nodes 40 --hot-rate 0.08")
    )(cluster.cluster)
    app.add_typer(GROUP, name="simulate", rich_help_panel="Decisions", help="Run traces of jobs under the decisions.")

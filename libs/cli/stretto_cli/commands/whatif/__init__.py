"""``stretto whatif``: ask for a decision offline, for capacity planning, a notebook or a bug report.

One module per decision; :mod:`.pages` draws their reports. The libraries of an algorithm are loaded when it is chosen.
"""

from __future__ import annotations

import typer
from stretto_core.algorithms import KINDS

from ...options import OutputForm, OutputOption, answer, example
from ...render import table
from . import allocate, fit, memory, pareto, place, select

GROUP = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    GROUP.command(epilog=example("stretto whatif algorithms -o json"))(algorithms)
    GROUP.command(epilog=example("stretto whatif allocate instance.json"))(allocate.allocate)
    GROUP.command(epilog=example("stretto whatif pareto model.json"))(pareto.pareto)
    GROUP.command(epilog=example("stretto whatif place layers.json"))(place.place)
    GROUP.command(epilog=example("stretto whatif select candidates.json"))(select.select)
    GROUP.command(epilog=example("stretto whatif fit profiles.csv --predict plans.csv"))(fit.fit)
    GROUP.command(epilog=example("stretto whatif memory series.csv --capacity-gib 16 --samples-remaining 1000000"))(
        memory.memory
    )
    app.add_typer(GROUP, name="whatif", rich_help_panel="Decisions", help="Ask for any decision offline, on files.")


def algorithms(output: OutputOption = OutputForm.TABLE) -> None:
    """List the algorithms that --algorithm can name, plug-ins included; the first of each line is the default."""
    found = {kind.name: kind.names() for kind in KINDS}

    def shown() -> object:
        made = table("decision", "algorithms", wrapped="algorithms")
        for kind, names in found.items():
            made.add_row(kind, ", ".join(names) or "–")
        return made

    answer(output, found, shown)

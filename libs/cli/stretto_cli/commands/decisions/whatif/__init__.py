"""``stretto whatif``: ask for a decision offline, for capacity planning, a notebook or a bug report.

One module per decision; :mod:`.pages` draws their reports. The libraries of an algorithm are loaded when it is chosen.
"""

from __future__ import annotations

from stretto_core.algorithms import KINDS

from ....command import CommandGroup
from ....options import OutputForm, OutputOption, answer
from ....render import table
from . import allocate, fit, memory, pareto, place, resize, select, spill

GROUP = CommandGroup(__name__, "whatif", "Decisions", "Ask for any decision offline, on files.")


@GROUP.command("stretto whatif algorithms -o json")
def algorithms(output: OutputOption = OutputForm.TABLE) -> None:
    """List the algorithms that --algorithm can name, plug-ins included; the first of each line is the default."""
    found = {kind.name: kind.names() for kind in KINDS}

    def shown() -> object:
        made = table("decision", "algorithms", wrapped="algorithms")
        for kind, names in found.items():
            made.add_row(kind, ", ".join(names) or "–")
        return made

    answer(output, found, shown)


GROUP.command("stretto whatif allocate instance.json")(allocate.allocate)
GROUP.command("stretto whatif pareto model.json")(pareto.pareto)
GROUP.command("stretto whatif place layers.json")(place.place)
GROUP.command("stretto whatif select candidates.json")(select.select)
GROUP.command("stretto whatif fit profiles.csv --predict plans.csv")(fit.fit)
GROUP.command("stretto whatif memory series.csv --capacity-gib 16 --samples-remaining 1000000")(memory.memory)
GROUP.command("stretto whatif spill curve.json")(spill.spill)
GROUP.command("stretto whatif resize -f job.yaml")(resize.resize)

"""``stretto simulate``: run traces of jobs under the decisions, to compare policies before choosing one.

One module per kind of cluster, its page beside it (``*_report``); :mod:`.traces` reads the traces.
"""

from __future__ import annotations

from ....command import CommandGroup
from . import allocation, cluster, data_workers

GROUP = CommandGroup(__name__, "simulate", "Decisions", "Run traces of jobs under the decisions.")
GROUP.command(
    "stretto simulate allocation trace.csv --nodes 110 --allocator marginal-doubling --report out",
)(allocation.allocation)
GROUP.command("stretto simulate data-workers trace.csv --policy srtf --report out")(data_workers.data_workers)
GROUP.command("stretto simulate cluster arrivals.csv --policy es --nodes 40 --hot-rate 0.08")(cluster.cluster)

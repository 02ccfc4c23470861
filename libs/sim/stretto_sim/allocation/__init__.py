"""Elastic jobs on a pool of nodes: the experiments of ModelArts (§5)."""

from stretto_sim.allocation.policies import Policy as Policy
from stretto_sim.allocation.simulation import AllocationOutcome as AllocationOutcome
from stretto_sim.allocation.simulation import Left as Left
from stretto_sim.allocation.simulation import simulate as simulate
from stretto_sim.allocation.trace import PoolTraceSettings as PoolTraceSettings
from stretto_sim.allocation.trace import TraceJob as TraceJob

"""Many training jobs on shared nodes, with what goes wrong there: the experiments of DLRover-RM (section 6)."""

from stretto_sim.cluster.arrivals import Arrival as Arrival
from stretto_sim.cluster.arrivals import jobs_of as jobs_of
from stretto_sim.cluster.outcome import CAUSES as CAUSES
from stretto_sim.cluster.outcome import COMPLETED as COMPLETED
from stretto_sim.cluster.outcome import ClusterOutcome as ClusterOutcome
from stretto_sim.cluster.outcome import Left as Left
from stretto_sim.cluster.policies import Policy as Policy
from stretto_sim.cluster.simulation import simulate as simulate
from stretto_sim.cluster.trace import ClusterTraceSettings as ClusterTraceSettings
from stretto_sim.cluster.trace import TraceJob as TraceJob

"""Jobs with separate workers that prepare their data: the cluster experiment of GoldMiner (§5.6)."""

from stretto_sim.data_workers.policies import Policy as Policy
from stretto_sim.data_workers.simulation import DataWorkersOutcome as DataWorkersOutcome
from stretto_sim.data_workers.simulation import Done as Done
from stretto_sim.data_workers.simulation import simulate as simulate
from stretto_sim.data_workers.trace import Cluster as Cluster
from stretto_sim.data_workers.trace import TraceJob as TraceJob

"""Elastic data workers (GoldMiner §3.4).

``tuning``: a job finds its own configuration; ``sharing``: the policies; ``placing``: nodes; ``machine``: the cluster.
"""

from stretto_core.offline.data_workers.facts import QueueState as QueueState
from stretto_core.offline.data_workers.machine import DataWorkers as DataWorkers
from stretto_core.offline.data_workers.machine import SharingSettings as SharingSettings
from stretto_core.offline.data_workers.tuning import Tuning as Tuning

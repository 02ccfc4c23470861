"""Makes the pods and parameters of one job match its plan, step by step, without a restart.

``ActuatorMachine`` remembers and decides; ``next_steps`` says what is still to be done. The service carries the steps
out against a backend and reports its observations; every observation may come twice, late or never.
"""

from stretto_core.actuator.counts import incomplete_shards, job_finished
from stretto_core.actuator.machine import ActuatorEvent, ActuatorMachine
from stretto_core.actuator.observations import (
    OBSERVATIONS,
    BucketsClaimed,
    CountsTaken,
    MovesFinished,
    MovesStarted,
    OrphanFound,
    PlanConverged,
    PodGivenUp,
    PodResizeRefused,
    ServerCounts,
    ServerEmptied,
)
from stretto_core.actuator.placement import UnownedColumns, claim, plan_moves
from stretto_core.actuator.servers import addresses
from stretto_core.actuator.state import ActuatorState, DataWorkers, JobOpened, Pod, Replacement
from stretto_core.actuator.steps import Rebalance, Steps, next_steps

__all__ = [
    "OBSERVATIONS",
    "ActuatorEvent",
    "ActuatorMachine",
    "ActuatorState",
    "BucketsClaimed",
    "CountsTaken",
    "DataWorkers",
    "JobOpened",
    "MovesFinished",
    "MovesStarted",
    "OrphanFound",
    "PlanConverged",
    "Pod",
    "PodGivenUp",
    "PodResizeRefused",
    "Rebalance",
    "Replacement",
    "ServerCounts",
    "ServerEmptied",
    "Steps",
    "UnownedColumns",
    "addresses",
    "claim",
    "incomplete_shards",
    "job_finished",
    "next_steps",
    "plan_moves",
]

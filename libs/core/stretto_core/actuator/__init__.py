"""Makes the pods and parameters of one job match its plan, step by step, without a restart.

``ActuatorMachine`` remembers and decides; ``next_steps`` says what the world still lacks. The edge of the service
carries the steps out against a backend and reports what it observed; every observation may come twice, late or never.
"""

from stretto_core.actuator.books import close_books
from stretto_core.actuator.hot import ReplacementAsked, ReplacementDecided, ReplacementEnded
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.placement import UnownedColumns, claim, plan_moves
from stretto_core.actuator.room import PodFixed, PodGivenUp, PodPending
from stretto_core.actuator.state import (
    ActuatorState,
    Book,
    BooksTaken,
    BucketsClaimed,
    CheckpointFailed,
    CheckpointFlushed,
    CheckpointRestored,
    HotPsCleared,
    HotPsDetected,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobFinished,
    JobSubmitted,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PlanDecided,
    Pod,
    PodExited,
    PodResized,
    PodStarted,
    Replacement,
    Server,
    ServersAsked,
    ServersChanged,
    ServersKnown,
    ShardAbandoned,
)
from stretto_core.actuator.steps import Rebalance, Steps, next_steps

__all__ = [
    "ActuatorMachine",
    "ActuatorState",
    "Book",
    "BooksTaken",
    "BucketsClaimed",
    "CheckpointFailed",
    "CheckpointFlushed",
    "CheckpointRestored",
    "HotPsCleared",
    "HotPsDetected",
    "JobCancelled",
    "JobCompleted",
    "JobFailed",
    "JobFinished",
    "JobSubmitted",
    "MigrationFinished",
    "MigrationStarted",
    "PlanApplied",
    "PlanDecided",
    "Pod",
    "PodExited",
    "PodFixed",
    "PodGivenUp",
    "PodPending",
    "PodResized",
    "PodStarted",
    "Rebalance",
    "Replacement",
    "ReplacementAsked",
    "ReplacementDecided",
    "ReplacementEnded",
    "Server",
    "ServersAsked",
    "ServersChanged",
    "ServersKnown",
    "ShardAbandoned",
    "Steps",
    "UnownedColumns",
    "claim",
    "close_books",
    "next_steps",
    "plan_moves",
]

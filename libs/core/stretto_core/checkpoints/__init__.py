"""Checkpoints of a job: when they are taken, which one stands, and the way back to it."""

from stretto_core.checkpoints.chains import newest_chain
from stretto_core.checkpoints.machine import CheckpointMachine
from stretto_core.checkpoints.names import is_column_restore, is_final, is_restore, restore_number
from stretto_core.checkpoints.observations import (
    OBSERVATIONS,
    ColumnsImported,
    ImagesFlushed,
    ImagesSaved,
    ParametersRestored,
    StepFailed,
)
from stretto_core.checkpoints.state import Attempt, CheckpointState, ColumnRestore, JobOpened, Restore

__all__ = [
    "OBSERVATIONS",
    "Attempt",
    "CheckpointMachine",
    "CheckpointState",
    "ColumnRestore",
    "ColumnsImported",
    "ImagesFlushed",
    "ImagesSaved",
    "JobOpened",
    "ParametersRestored",
    "Restore",
    "StepFailed",
    "is_column_restore",
    "is_final",
    "is_restore",
    "newest_chain",
    "restore_number",
]

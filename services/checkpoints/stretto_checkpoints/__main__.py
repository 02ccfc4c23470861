"""``python -m stretto_checkpoints``."""

from stretto_runtime import run

from .service import Checkpoints

run(Checkpoints)

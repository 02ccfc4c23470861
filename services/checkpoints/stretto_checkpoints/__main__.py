"""``python -m stretto_checkpoints``."""

from stretto_runtime import run

from .service import Checkpoints

if __name__ == "__main__":
    run(Checkpoints)

"""``python -m stretto_actuator``."""

from stretto_runtime import run

from .service import Actuator

if __name__ == "__main__":
    run(Actuator)

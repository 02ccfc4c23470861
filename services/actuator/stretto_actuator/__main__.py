"""``python -m stretto_actuator``."""

from stretto_runtime import run

from .service import Actuator

run(Actuator)

"""The command by which the actuator starts a worker: ``python -m stretto.worker``."""

from .agent import main

main()

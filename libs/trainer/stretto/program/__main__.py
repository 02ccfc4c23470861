"""The command by which the actuator starts a worker of a job with a program: ``python -m stretto.program``."""

from .host import main

main()

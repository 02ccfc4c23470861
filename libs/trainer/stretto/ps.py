"""The command by which the actuator starts a parameter server: ``python -m stretto.ps``.

The actuator's commands are ``stretto.<role>``, with a pod's role as messages spell it. An image of a user holds the
trainer of its own release, so these names stay.
"""

from .server.agent import main

if __name__ == "__main__":
    main()

"""The command by which the actuator starts a data worker: ``python -m stretto.data``; ps.py argues its name."""

from .data_worker.agent import main

if __name__ == "__main__":
    main()

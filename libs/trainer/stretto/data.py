"""The command by which the actuator starts a data worker: ``python -m stretto.data``; ps.py argues its name."""

if __name__ == "__main__":  # lanes import this module under another name, and do without the agent
    from .data_worker.agent import main

    main()

"""Decides every job's plan: one choice over all jobs, under the cluster's capacity.

``ArbiterMachine`` hears what happens and runs a cycle of numbered steps; ``Desk`` is what the steps share, its
``Register`` what they need to know of a thousand jobs without asking each: an event costs what it changes.
"""

from stretto_core.arbiter.machine import ArbiterMachine

__all__ = ["ArbiterMachine"]

"""Decides every job's plan: one choice over all jobs, under the cluster's capacity.

``ArbiterMachine`` takes events in and runs a cycle of numbered steps (``machine``):

1, 5 ``memory``       memory that a forecast asks for, and memory that can be given back
2, 3 ``admission``    starts of waiting jobs; measurements and plans that users asked for
4    ``rounds``       one choice over all jobs: ``contest`` states the problem, an algorithm of ``selection`` solves it,
                      ``background`` has a slower algorithm improve it, ``explanation`` writes the reasons

All steps share a ``StepContext``: the state, its index (``register``), and the ways to answer a job. The index makes
the cost of an event depend on what the event changes, not on the number of jobs. ``teams`` keeps quotas and fair shares
in all steps, ``worth`` has the arithmetic of plans.
"""

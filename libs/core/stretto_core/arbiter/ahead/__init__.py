"""Choices over the steps ahead (ModelArts).

``horizon`` looks ahead for the live arbiter's rounds. The other modules share out a pool of nodes as the paper states
it, for ``stretto whatif allocate`` and ``stretto simulate allocation``: ``problem`` states the programme, ``milp``
solves it exactly for some dozens of jobs. ``certified`` plans for 10,000 jobs in 0.3 s of processor time: node prices
by step, found by following the excess demand or, where short jobs are indifferent between steps, by a level method that
proves the bound (``level_method``). Its gap was measured at 0.1 % or less (``python -m tests.bench allocation``).
``greedy`` is what ModelArts replaced, ``doubling`` hands out nodes by rank of remaining demand.
"""

from stretto_core.arbiter.ahead.problem import Allocation as Allocation
from stretto_core.arbiter.ahead.problem import AllocationProblem as AllocationProblem
from stretto_core.arbiter.ahead.problem import Allocator as Allocator
from stretto_core.arbiter.ahead.problem import ElasticJob as ElasticJob

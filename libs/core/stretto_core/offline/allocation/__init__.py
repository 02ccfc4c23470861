"""Nodes for elastic jobs over the steps ahead (ModelArts)."""

from stretto_core.offline.allocation.problem import Allocation as Allocation
from stretto_core.offline.allocation.problem import AllocationProblem as AllocationProblem
from stretto_core.offline.allocation.problem import Allocator as Allocator
from stretto_core.offline.allocation.problem import ElasticJob as ElasticJob

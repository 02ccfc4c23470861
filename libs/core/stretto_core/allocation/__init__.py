"""Nodes for elastic jobs over the steps ahead (ModelArts)."""

from stretto_core.allocation.problem import Allocation as Allocation
from stretto_core.allocation.problem import AllocationProblem as AllocationProblem
from stretto_core.allocation.problem import Allocator as Allocator
from stretto_core.allocation.problem import ElasticJob as ElasticJob

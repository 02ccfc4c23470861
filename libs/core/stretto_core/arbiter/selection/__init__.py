"""One choice over all jobs under the cluster's capacity (DLRover-RM Eq. 11-14)."""

from stretto_core.arbiter.selection.greedy import weighted_greedy as weighted_greedy
from stretto_core.arbiter.selection.problem import OBJECTIVE as OBJECTIVE
from stretto_core.arbiter.selection.problem import RHO as RHO
from stretto_core.arbiter.selection.problem import Contender as Contender
from stretto_core.arbiter.selection.problem import Ending as Ending
from stretto_core.arbiter.selection.problem import Objective as Objective
from stretto_core.arbiter.selection.problem import Option as Option
from stretto_core.arbiter.selection.problem import Selection as Selection
from stretto_core.arbiter.selection.problem import SelectionAlgorithm as SelectionAlgorithm
from stretto_core.arbiter.selection.problem import SelectionProblem as SelectionProblem

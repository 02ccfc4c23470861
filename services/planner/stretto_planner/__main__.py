"""``python -m stretto_planner``"""

from stretto_runtime import run

from stretto_planner.service import Planner

run(Planner)

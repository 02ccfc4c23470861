"""``python -m stretto_planner``"""

from stretto_runtime import run

from stretto_planner.service import Planner

if __name__ == "__main__":
    run(Planner)

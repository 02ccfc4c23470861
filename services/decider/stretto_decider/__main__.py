"""``python -m stretto_decider``"""

from stretto_runtime import run

from stretto_decider.service import Decider

if __name__ == "__main__":
    run(Decider)

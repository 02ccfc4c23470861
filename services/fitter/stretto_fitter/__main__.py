"""``python -m stretto_fitter``"""

from stretto_runtime import run

from stretto_fitter.service import Fitter

if __name__ == "__main__":
    run(Fitter)

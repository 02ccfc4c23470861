"""``python -m stretto_arbiter``"""

from stretto_runtime import run

from stretto_arbiter.service import Arbiter

if __name__ == "__main__":
    run(Arbiter)

"""``python -m stretto_oom``"""

from stretto_runtime import run

from stretto_oom.service import Oom

if __name__ == "__main__":
    run(Oom)

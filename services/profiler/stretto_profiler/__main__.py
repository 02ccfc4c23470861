"""``python -m stretto_profiler``."""

from stretto_runtime import run

from .service import Profiler

if __name__ == "__main__":
    run(Profiler)

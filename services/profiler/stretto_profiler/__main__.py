"""``python -m stretto_profiler``."""

from stretto_runtime import run

from .service import Profiler

run(Profiler)

"""``python -m stretto_arbiter``"""

from stretto_runtime import run

from stretto_arbiter.service import Arbiter

run(Arbiter)

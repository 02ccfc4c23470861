"""``python -m stretto_dispatcher``"""

from stretto_runtime import run

from stretto_dispatcher.service import Dispatcher

if __name__ == "__main__":
    run(Dispatcher)

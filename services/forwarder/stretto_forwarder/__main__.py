"""``python -m stretto_forwarder``"""

from stretto_runtime.program import execute

from stretto_forwarder.service import NAME, serve
from stretto_forwarder.settings import ForwarderSettings

if __name__ == "__main__":
    execute(NAME, ForwarderSettings, serve)

"""``python -m stretto_forwarder``"""

from stretto_runtime.program import execute

from stretto_forwarder.service import NAME, serve
from stretto_forwarder.settings import ForwarderSettings

execute(NAME, ForwarderSettings, serve)

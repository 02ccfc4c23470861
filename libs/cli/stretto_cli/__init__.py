"""The command: stretto up, submit, watch, explain …"""

import sys
from types import ModuleType
from typing import cast

# httpx imports its own command line, and with it click and pygments, wherever these are installed. `stretto jobs` would
# spend a fifth of its time on that. None in sys.modules tells Python that a module is not there; httpx does without it.
sys.modules.setdefault("httpx._main", cast(ModuleType, None))

"""The command: stretto up, submit, watch, explain …"""

import sys
from types import ModuleType
from typing import cast

# httpx imports its own command line, and with it click and pygments, wherever these are installed: a fifth of the time
# that `stretto jobs` takes. None is how Python says that a module is not to be had; httpx goes on without.
sys.modules.setdefault("httpx._main", cast(ModuleType, None))

"""Makes the helpers beside the tests importable (pytest's importlib mode leaves the folder off the path)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""Common to all tests that run programs: modules beside them are on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode leaves the folder off the path

"""The generated curves are a module of their own, for the benchmark too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

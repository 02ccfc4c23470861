# pyright would infer the types of this package anew in each run, and its results are checked at our own signatures
from typing import Any

def __getattr__(name: str) -> Any: ...

"""PyTorch is an extra, which a clone need not have: whatever it gives is checked at our own signatures."""

from typing import Any

def __getattr__(name: str) -> Any: ...

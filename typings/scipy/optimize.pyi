# scipy ships no types; inferring them from its sources took pyright a quarter of its time. Results are checked at our
# own signatures.
from typing import Any

def __getattr__(name: str) -> Any: ...

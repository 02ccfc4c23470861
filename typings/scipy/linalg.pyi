# scipy ships no types; inferring them from its sources takes pyright 58 s in place of 46 s. Results are checked at our
# own signatures.
from typing import Any

def __getattr__(name: str) -> Any: ...

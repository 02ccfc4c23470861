"""Faults of requests to the API server."""

from __future__ import annotations

UNREACHABLE = 0
EXPIRED = 410
_PASSING = frozenset({UNREACHABLE, 401, 408, 429})


class KubeFault(Exception):
    """The API server refused a request (``reason`` and ``message`` are its words) or did not answer (``status`` 0)."""

    def __init__(self, doing: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{doing}: {message or reason}" + (f" ({status} {reason})" if status else ""))
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def passing(self) -> bool:
        """True if the same request may succeed later, because the trouble is the server's and not the request's."""
        return self.status in _PASSING or self.status >= 500

"""What can go wrong between us and the API server."""

from __future__ import annotations

UNREACHABLE = 0
EXPIRED = 410
_PASSING = frozenset({UNREACHABLE, 401, 408, 429})


class KubeFault(Exception):
    """The API server refused, or did not answer (``status`` 0); ``reason`` and ``message`` are its own words."""

    def __init__(self, doing: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{doing}: {message or reason}" + (f" ({status} {reason})" if status else ""))
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: it is the server's trouble, not the request's."""
        return self.status in _PASSING or self.status >= 500

"""Errors of the bus. Each says what failed, with which value, and what to do."""

from __future__ import annotations


class Fault(Exception):
    """Base of the errors that the bus and the runtime raise."""


class IdentityFault(Fault):
    """A key, a token or a file of credentials is not what it should be. The text never holds its secret."""


class BusFault(Fault):
    """The server refused or did not answer; ``code`` is its error code (0: no answer)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Fenced(BusFault):
    """A newer owner has written its fence or its epoch: the refused write must not be repeated."""


class Unreadable(BusFault):
    """A stored message that a reader needs cannot be read: its bytes are damaged."""


class NobodyListens(BusFault):
    """The subject has no subscriber at the moment."""


class CallRefused(Fault):
    """The owner of the job answered a request with an error.

    Attributes: ``code`` (a short word), ``field``, ``value``, ``remedy``; the last three may be empty.
    """

    def __init__(self, code: str, message: str, field: str = "", value: str = "", remedy: str = "") -> None:
        detail = f" ({field}={value!r})" if field else ""
        super().__init__(f"{code}: {message}{detail}{'; ' + remedy if remedy else ''}")
        self.code = code
        self.message = message
        self.field = field
        self.value = value
        self.remedy = remedy


class CallTimeout(Fault):
    """Nobody answered the request in time; it may or may not have been handled."""

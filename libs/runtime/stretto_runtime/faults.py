"""What can go wrong between a machine and the bus."""

from __future__ import annotations


class RuntimeFault(Exception):
    """Base of every error of this package; says what failed, with which value, and what to do."""


class SettingsFault(RuntimeFault):
    """A variable of the environment is unknown or its value is refused."""


class IdentityFault(RuntimeFault):
    """A key, a token or a file of credentials cannot be what it is taken for; never tells what is secret of it."""


class Refusal(RuntimeFault):
    """What another version of a machine left cannot be continued by this one: nothing was changed or published."""


class BusFault(RuntimeFault):
    """The server refused or did not answer; ``code`` is its error code (0: no answer)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Fenced(BusFault):
    """A newer owner has written its fence or its epoch: what was refused must not be tried again."""


class NobodyListens(BusFault):
    """The subject has no subscriber at the moment."""


class PartitionLost(RuntimeFault):
    """This replica does not own the partition of that job (any more)."""


class CallRefused(RuntimeFault):
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


class CallTimeout(RuntimeFault):
    """Nobody answered the request in time; it may or may not have been handled."""

"""What the command refuses or fails at; each error knows its exit status."""

from __future__ import annotations


class CliError(Exception):
    """A failure: exit status 1. The text says what failed, with which value, and what to do."""

    status = 1


class BadInput(CliError):
    """What the user gave cannot be used: exit status 2."""

    status = 2


class NotRunning(CliError):
    """Nothing runs where the command looked."""

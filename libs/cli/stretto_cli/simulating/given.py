"""What the simulations are given: traces with jobs in them, and options whose faults bear the options' names."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

from stretto_messages.base import InvalidValue

from ..options import Output
from ..whatif.reading import BadData, Given, refuse, rows

Parsed = TypeVar("Parsed", bound=Given)


@contextmanager
def named_as_options(settings: type[Any]) -> Generator[None]:
    """A fault of ``settings``, a data class, names its fields; who typed options is told of these."""
    try:
        yield
    except InvalidValue as error:
        known = "|".join(field.name for field in fields(settings))
        raise BadData(re.sub(rf"\b({known})\b", _option, str(error))) from error


def _option(found: re.Match[str]) -> str:
    return "--" + found[0].replace("_", "-")


def jobs_in(file: str, form: type[Parsed], output: Output) -> list[Parsed]:
    """A job in each row. People who give none are told so; programs get the document of no jobs."""
    found = rows(file, form)
    if not found and output is Output.TABLE:
        refuse("FILE", file, "one job at least below its header")
    return found

"""Inputs of the simulations: traces of jobs, and options whose errors name the option."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

from stretto_messages.base import InvalidValue

from ....options import OutputForm
from ....reading import BadData, Given, read_csv, refuse

Parsed = TypeVar("Parsed", bound=Given)


@contextmanager
def named_as_options(settings: type[Any]) -> Generator[None]:
    """Replace field names of the dataclass ``settings`` in its errors by the options that set them."""
    try:
        yield
    except InvalidValue as error:
        known = "|".join(field.name for field in fields(settings))
        raise BadData(re.sub(rf"\b({known})\b", _option, str(error))) from error


def _option(found: re.Match[str]) -> str:
    return "--" + found[0].replace("_", "-")


def jobs_in(file: str, form: type[Parsed], output: OutputForm) -> list[Parsed]:
    """Read one job per row. With no rows, a table is refused; a program gets the document of no jobs."""
    found = read_csv(file, form)
    if not found and output is OutputForm.TABLE:
        refuse("FILE", file, "one job at least below its header")
    return found

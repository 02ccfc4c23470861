"""Facts and observations, of which a test names only what it cares about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from stretto_messages.base import examples


def maker(kind: type[Any], /, *names: str, **known: Any) -> Callable[..., Any]:
    """Return a function that makes a fact of this kind from the fields ``names``, in their order.

    Fields that its caller leaves out are as ``known``, or as in the registered example. The job is "job", and a pod's
    role is that of its name.
    """
    has_role = "role" in {field.name for field in fields(kind)}

    def make(*values: Any, **more: Any) -> Any:
        given = {"job": "job", **known, **dict(zip(names, values, strict=False)), **more}
        if has_role:
            given.setdefault("role", given["pod"].partition("-")[0])
        example = examples().get(kind)
        return kind(**given) if example is None else replace(example, **given)

    return make

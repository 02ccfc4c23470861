"""Data with a planted signal, and the form in which models that strangers have are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from stretto.readers.hashing import VALUE_BITS
from stretto_parameters.keys import restore

USERS, ITEMS, TAGS = 60, 40, 15
CITIES = ("", "Rome", "Oslo", "Lima", "Cairo", "Kyoto", "Turin")


def columns(start: int, length: int) -> dict[str, Any]:
    """Return samples with a planted signal: users, items and cities have tastes, and a tag of the history counts."""
    place = np.arange(start, start + length, dtype=np.uint64)
    draw = (place * np.uint64(0x9E3779B97F4A7C15)) ^ (place >> np.uint64(3)) * np.uint64(0xBF58476D1CE4E5B9)

    def pick(shift: int, n: int) -> Any:
        return ((draw >> np.uint64(shift)) % np.uint64(n)).astype(np.int64)

    user, item, city = pick(7, USERS), pick(17, ITEMS), 1 + pick(29, len(CITIES) - 1)
    many = 1 + pick(37, 3)  # tags of a sample
    tags = np.stack([1 + pick(shift, TAGS - 1) for shift in (11, 23, 41)], axis=1) * (np.arange(3) < many[:, None])
    price = pick(33, 100).astype(np.float32) / 50 - 1
    taste = (user * 7919 % 11 - 5) / 4 + (item * 104729 % 7 - 3) / 3 + (city % 3 - 1) / 2 + (tags == 3).any(axis=1)
    noise = pick(45, 1000) / 1000 - 0.5
    clicked = (taste + 0.5 * price + 2 * noise > 0).astype(np.float32)
    return {
        "user": user,
        "item": item,
        "city": np.array(CITIES, object)[city],
        "tags": tags,
        "many": many,
        "price": price,
        "label": clicked,
        "bought": (taste > 1).astype(np.float32),
        "stars": (1 + np.clip(taste + noise, -2, 2)).astype(np.float32),
        "class": np.clip(np.round(taste + noise).astype(np.int64) + 1, 0, 2),
        "importance": (0.5 + pick(49, 3)).astype(np.float32),
    }


def named(*names: str) -> Callable[[int, int], Any]:
    """Return a `read` of some columns as a dict."""
    return lambda start, length: {name: columns(start, length)[name] for name in (*names, "label")}


def pairs(*names: str, label: Any = "label", weight: str | None = None) -> Callable[[int, int], Any]:
    """Return a `read` of (inputs, labels), as model.fit takes them."""

    def read(start: int, length: int) -> Any:
        found = columns(start, length)
        inputs = [found[name] for name in names]
        labels = {name: found[column] for name, column in label.items()} if isinstance(label, dict) else found[label]
        given = (inputs[0] if len(inputs) == 1 else inputs, labels)
        return given if weight is None else (*given, found[weight])

    return read


@dataclass(frozen=True)
class Kind:
    """A kind of model. refused: what the message says, and why in the document; "" if it is trained.

    noise: the most by which its outputs differ from call to call.
    """

    told: str
    build: Callable[[], Any]
    read: Callable[[int, int], Any] = field(default_factory=lambda: named("user", "item", "price"))
    refused: str = ""
    why: str = ""
    noise: float = 0.0
    loss: Any = None
    """The task's own."""


class Task:
    """A task of a kind."""

    def __init__(self, kind: Kind, **attributes: Any) -> None:
        self.build, self.read = kind.build, kind.read
        if kind.loss is not None:
            self.loss = kind.loss
        for name, value in attributes.items():
            setattr(self, name, value)


def rows_of(program: Any, keys: Any, tables: dict[tuple[int, int], np.ndarray]) -> list[np.ndarray]:
    """Return the rows of a batch's keys in some tables."""
    found = []
    for number, (table, spec) in enumerate(zip(keys.tables, program.layout.tables, strict=True)):
        numbers = restore(table.stored)
        fields, ids = numbers >> VALUE_BITS, numbers & ((1 << VALUE_BITS) - 1)
        rows = [tables[number, field][i] for field, i in zip(fields.tolist(), ids.tolist(), strict=True)]
        found.append(np.array(rows, np.float32).reshape(len(numbers), spec.dimension))
    return found


def document_table(taken: dict[str, Kind], refused: dict[str, Kind]) -> str:
    """Return the table of a document that says which kinds are taken."""
    rows = [f"| {kind.told} | yes |" for kind in taken.values()]
    rows += [f"| {kind.told} | no: {kind.why} |" for kind in refused.values()]
    return "\n".join(["| model, data | taken |", "| --- | --- |", *rows]) + "\n"

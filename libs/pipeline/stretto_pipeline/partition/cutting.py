"""The graph of a preparation in parts, one for each group of a chain of data workers.

    part k: raw samples, and what part k - 1 answers -> what later parts read, or the answer

An operation that depends on no sample, such as a constant or a table, is in every part that reads it. Raw samples are
everywhere: each lane has them, since it asks the lanes before it with them. Edges of control between parts are dropped:
an answer arrives after all that prepared it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..errors import ProgramRefused
from .halves import needed_part
from .normalise import address_of

EVERYWHERE = -1
"""The group of what depends on no sample, and of the samples themselves."""


@dataclass(frozen=True)
class Part:
    """A graph; the tensors that it is given beside the raw samples, and those that it gives, by the graph's names."""

    graph_def: Any
    received: tuple[str, ...]
    fetches: tuple[str, ...]


def parts_of(
    graph_def: Any,
    raw: Collection[str],
    fetches: Sequence[str],
    group_of: Callable[[str], int],
    count: int,
    type_of: Callable[[str], int | None],
) -> list[Part]:
    """Cut the graph of a preparation into so many parts. Run one after another they give what the whole gives.

    raw: placeholders of the samples. group_of: the group in which an operation should run; it runs later where what it
    reads does. type_of: TensorFlow's number of a tensor's type, None if it cannot travel.

    Raises ProgramRefused: a tensor between two parts cannot travel, or the graph has a loop of TensorFlow 1.
    """
    at = _groups(graph_def, raw, group_of)
    read = [(_whole(each), at[node.name]) for node in graph_def.node for each in node.input if not each.startswith("^")]
    read += [(_whole(each), count) for each in fetches]
    parts: list[Part] = []
    given: tuple[str, ...] = ()
    for number in range(count):
        wanted = tuple(map(_whole, fetches))
        if number < count - 1:
            crossing = {name for name, reader in read if EVERYWHERE < at[address_of(name)[0]] <= number < reader}
            wanted = tuple(sorted(crossing))
        here = {name for name, group in at.items() if group in (EVERYWHERE, number)}
        parts.append(_part(graph_def, here, raw, given, wanted, type_of))
        given = wanted
    return parts


def _whole(name: str) -> str:
    """Return the name of a tensor with the number of its output."""
    source, place = address_of(name)
    return f"{source}:{place}"


def _groups(graph_def: Any, raw: Collection[str], group_of: Callable[[str], int]) -> Mapping[str, int]:
    """Return the group of each operation: not before that of any other which it needs."""
    before = {node.name: [address_of(each)[0] for each in node.input] for node in graph_def.node}
    found: dict[str, int] = {}
    has_samples: dict[str, bool] = {}
    try:
        order = [*TopologicalSorter(before).static_order()]
    except CycleError:
        raise ProgramRefused("the step has a loop of TensorFlow 1, which cannot be cut for several types") from None
    for name in order:
        has_samples[name] = name in raw or any(has_samples[each] for each in before[name])
        if name in raw or not has_samples[name]:
            found[name] = EVERYWHERE
        else:
            found[name] = max([group_of(name), 0, *(found[each] for each in before[name])])
    return found


def _part(
    graph_def: Any,
    here: Collection[str],
    raw: Collection[str],
    given: Sequence[str],
    wanted: Sequence[str],
    type_of: Callable[[str], int | None],
) -> Part:
    """Return the graph of the operations here: placeholders stand for what is given."""
    made = type(graph_def)(library=graph_def.library, versions=graph_def.versions)
    stands_for = {name: f"stretto_given_{number}:0" for number, name in enumerate(given)}
    for name, placeholder in stands_for.items():
        node = made.node.add(name=address_of(placeholder)[0], op="Placeholder")
        node.attr["dtype"].type = _travelling(name, type_of)
    fetches: list[str] = []
    for number, name in enumerate(wanted):
        fetches.append(name)
        if name in stands_for or address_of(name)[0] in raw:  # passed on: a graph gives no input of its own
            node = made.node.add(name=f"stretto_passed_{number}", op="Identity", input=[stands_for.get(name, name)])
            node.attr["T"].type = _travelling(name, type_of)
            fetches[-1] = f"{node.name}:0"
    for node in graph_def.node:
        if node.name not in here:
            continue
        copy = made.node.add()
        copy.CopyFrom(node)
        del copy.input[:]
        for each in node.input:
            if each.startswith("^"):
                copy.input.extend([each] if each[1:] in here else [])
            else:
                copy.input.append(stands_for.get(_whole(each), each))
    needed = [*raw, *(address_of(each)[0] for each in (*stands_for.values(), *fetches))]
    return Part(needed_part(made, needed), tuple(stands_for.values()), tuple(fetches))


def _travelling(name: str, type_of: Callable[[str], int | None]) -> int:
    found = type_of(name)
    if found is None:
        raise ProgramRefused(
            f"{name} cannot travel from one data worker to another: place what makes it and what reads it on one type "
            "of device, by --device-type"
        )
    return found

"""The history of an API server, as its clients may learn of it."""

from __future__ import annotations

from hypothesis import strategies as st
from stretto_kube import Object

NAMES = ("a", "b", "c")


class History:
    """The history of a server: every change with its version, and the objects at any version."""

    def __init__(self) -> None:
        self.events: list[Object] = []
        self.states: list[dict[str, Object]] = [{}]

    def change(self, name: str, delete: bool) -> None:
        now = self.states[-1]
        version = len(self.states)
        one = {"metadata": {"name": name, "resourceVersion": str(version)}}
        kind = "DELETED" if delete and name in now else "MODIFIED" if name in now else "ADDED"
        self.events.append({"type": kind, "object": one})
        rest = {each: known for each, known in now.items() if each != name}
        self.states.append(rest if kind == "DELETED" else {**now, name: one})

    @property
    def version(self) -> int:
        return len(self.states) - 1


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for name, delete in draw(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=25)):
        history.change(name, delete)
    return history


def bookmark(version: int) -> Object:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}

"""The view ends the same, in whatever way a client learns of the changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_kube import KubeFault, Object, ObjectChange, ObjectView
from watch_history import History, bookmark, histories


@given(histories(), st.lists(st.sampled_from(["list", "watch", "write", "bookmark"]), max_size=12), st.data())
def test_any_interleaving_gives_the_same_view(history: History, acts: list[str], data: st.DataObject) -> None:
    """Listings at any time, watches that break and begin anew, repeated and reordered events, early own writes."""
    store, told = ObjectView(), dict[str, Object]()
    at = 0

    def tell(changes: list[ObjectChange]) -> None:
        for change in changes:
            name = change.object["metadata"]["name"]
            if change.gone:
                del told[name]
            else:
                told[name] = change.object

    for act in acts:
        if act == "list":
            at = data.draw(st.integers(at, history.version), label="listed at")
            tell(store.listed(history.states[at].values(), at))
        elif act == "watch":
            upto = data.draw(st.integers(at, history.version), label="watched to")
            events = history.events[at:upto]
            twice = data.draw(st.lists(st.sampled_from(events), max_size=5)) if events else []
            for event in data.draw(st.permutations([*events, *twice])):
                tell([change for change in [store.take(event)] if change])
            at = upto
        elif act == "write" and history.events:
            event = data.draw(st.sampled_from(history.events), label="answer to a write")
            if event["type"] != "DELETED":
                tell([change for change in [store.seen(event["object"])] if change])
        elif act == "bookmark":
            store.take(bookmark(at))

    for event in history.events[at:]:
        tell([change for change in [store.take(event)] if change])
    assert store.objects == history.states[-1] == told


def test_an_error_of_the_watch_is_a_fault() -> None:
    expired = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old resource version"}}
    with pytest.raises(KubeFault, match="too old resource version") as fault:
        ObjectView().take(expired)
    assert fault.value.status == 410

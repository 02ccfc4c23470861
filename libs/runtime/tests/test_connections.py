"""Connections of parties: who comes is counted, who presents a token is counted apart, the oldest of too many end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stretto_runtime.process.connections import Connections, Slot, network_of

ADDRESSES = ("192.0.2.1", "192.0.2.2", "127.0.0.1", "127.0.0.9", "::1", "process 7", "10.0.0.1")


def test_an_address_is_what_one_party_holds() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("127.0.0.1") == network_of("127.9.9.9") == network_of("::1") == network_of("::ffff:127.0.0.2")


@given(
    each_most=st.integers(1, 4),
    all_most=st.integers(1, 6),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("open"), st.sampled_from(ADDRESSES)),
            st.tuples(st.just("accept"), st.sampled_from(("ada", "ben"))),
            st.tuples(st.just("close"), st.just("")),
        ),
        max_size=60,
    ),
    picks=st.randoms(),
)
def test_the_newest_stays_strangers_end_no_caller_and_every_bound_holds(
    each_most: int, all_most: int, steps: list[tuple[str, str]], picks: st.Random
) -> None:
    connections = Connections(each_most, all_most, proxies="10.0.0.0/8")
    live: dict[Slot, str] = {}  # with the name of its caller

    def end(slot: list[Slot]) -> None:
        del live[slot[0]]

    for step, what in steps:
        callers = {slot for slot, caller in live.items() if caller}
        if step == "open":
            made: list[Slot] = []
            made.append(connections.opened(what, lambda made=made: end(made)))
            live[made[0]] = ""
            assert callers <= live.keys()
        elif live:
            slot = picks.choice([*live])
            if step == "close":
                del live[slot]
                connections.closed(slot)
            elif not live[slot] and slot.party != "10.0.0.1":
                live[slot] = what
                connections.accepted(slot, what)
                assert slot in live
        for are_strangers in (True, False):
            parties = [s.party for s, caller in live.items() if (not caller) is are_strangers and s.party != "10.0.0.1"]
            assert len(parties) <= all_most
            assert all(parties.count(party) <= each_most for party in parties)

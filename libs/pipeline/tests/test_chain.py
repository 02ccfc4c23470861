"""Chains of data workers: how they are written, and for how many batches a lane is asked that others feed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_pipeline.chain import IN_HAND_MAX, LANES_MAX, Chain, ChainRefused, Group, chain_of, window_of
from stretto_pipeline.feeding import (
    CREDITS,
    SPARE,
    Action,
    Answered,
    Ask,
    Compare,
    Compared,
    Deliver,
    Event,
    FeedMachine,
    HomePrepared,
    Joined,
    Needed,
    Prepare,
    Range,
    Wanted,
)

devices = st.sampled_from(["cpu", "gpu", "tpu", "npu2"])
groups = st.lists(st.builds(Group, devices, st.integers(1, 4)), min_size=2, max_size=3).filter(
    lambda drawn: all(one.device != other.device for one, other in pairwise(drawn))
)


@given(st.integers(1, LANES_MAX))
def test_a_number_alone_is_one_group_of_no_type(count: int) -> None:
    assert chain_of(str(count)).groups == (Group("", count),)
    assert chain_of(f"cpu={count}").groups == (Group("cpu", count),)


@given(groups)
def test_types_with_numbers_come_in_their_order(drawn: list[Group]) -> None:
    text = ",".join(f"{each.device.upper()} = {each.count}" for each in drawn)
    assert chain_of(text).groups == tuple(drawn)


@given(st.text(max_size=12))
def test_any_text_is_a_chain_or_is_refused_with_its_name(text: str) -> None:
    found, refusal = None, ""
    try:
        found = chain_of(text)
    except ChainRefused as error:
        refusal = str(error)
    if found is None:
        assert refusal.startswith("--data-workers")
        assert "give " in refusal
    else:
        assert 1 <= sum(each.count for each in found.groups) <= LANES_MAX
        assert len(found.groups) == text.count(",") + 1


@given(st.integers(1, 40), st.integers(1, 40))
def test_what_a_group_has_in_hand_is_bounded(cpus: int, gpus: int) -> None:
    """Method: the product of lanes and of what each is asked for, in chains of two types of any size."""
    try:
        found = chain_of(f"cpu={cpus},gpu={gpus}")
    except ChainRefused:
        assert cpus + gpus > LANES_MAX or gpus * (SPARE + CREDITS * cpus) > IN_HAND_MAX
    else:
        assert all(
            each.count * credits <= IN_HAND_MAX for each, credits in zip(found.groups, found.credits, strict=True)
        )


@pytest.mark.parametrize(
    ("text", "declared", "reason"),
    [
        ("0", [], "--data-workers 0: give 1 to 64"),
        ("cpu=40,gpu=40", [], "give 1 to 64 in all"),
        ("cpu=2,gpu=0", [], "at least 1 of each type"),
        ("cpu=2,3", [], "'3' is refused: give a number, or types with numbers, such as cpu=2,gpu=1"),
        ("cpu", [], "'cpu' is refused: give a number"),
        ("=2", [], "'=2' is refused: give a number"),
        ("-1", [], "'-1' is refused: give a number"),
        ("cpu=2,cpu=1", [], "cpu feeds itself: give cpu once, with the sum"),
        ("a b=2", [], "is no type of device"),
        (
            "cpu=32,gpu=32",
            [],
            "cpu=32,gpu=32: the 32 gpu data workers would be asked for 2112 batches at once, 66 each: "
            "give fewer of them, or of the types before them, such that these are at most 512",
        ),
        ("cpu=10,gpu=10,tpu=4", [], "the 4 tpu data workers would be asked for 888 batches at once, 222 each"),
        ("cpu=30,gpu=20,tpu=1", [], "the 20 gpu data workers would be asked for 1240 batches at once, 62 each"),
        ("2", ["UniqueV2=gpu"], "--device-type UniqueV2=gpu: --data-workers 2 has no gpu: give a number of them"),
        ("cpu=2,gpu=1", ["UniqueV2"], "--device-type UniqueV2: give OPERATION=TYPE"),
    ],
)
def test_what_cannot_be_used_is_refused_with_field_value_and_remedy(
    text: str, declared: list[str], reason: str
) -> None:
    with pytest.raises(ChainRefused) as refused:
        chain_of(text, declared)
    assert reason in str(refused.value)


def test_a_declared_type_is_one_of_the_chain() -> None:
    found = chain_of("cpu=2,gpu=1", ["UniqueV2=GPU"])
    assert found == Chain((Group("cpu", 2), Group("gpu", 1)), {"UniqueV2": "gpu"})
    assert found.in_words == "2 cpu and 1 gpu data workers"
    assert found.credits == (2, 2 * (1 + 2))


@settings(max_examples=40)
@given(groups)
def test_a_lane_is_asked_for_what_its_own_feed_may_hold(drawn: list[Group]) -> None:
    """Method: the feed of a lane holds batches that it was asked for. Two of them wait to be finished, and all lanes
    before it still have all that they may have in hand; with one batch less, a lane of them has less."""
    credits = Chain(tuple(drawn)).credits
    for group, own, asked in zip(drawn, credits, credits[1:], strict=False):
        assert asked == window_of(group.count, own)
        assert in_hand(group.count, own, asked) == own * group.count
        assert in_hand(group.count, own, asked - 1) == own * group.count - 1


def in_hand(lane_count: int, credits: int, batches: int) -> int:
    """Return what lanes have in hand of a feed that is wanted so many batches, the first of which were answered."""
    fed = Fed(FeedMachine(2**30, is_home_ahead=False, credits=credits), batches)
    for number in range(lane_count):
        fed.tell(Joined(f"lane {number}"))
    # a lane's first answer is compared at its turn; then the lane gets one more with each answer
    for _ in range((lane_count + credits) * batches):
        fed.want()
        if fed.is_head_in_hand:
            fed.answer()
        fed.tell(Needed())
    fed.answer()
    fed.want()
    while batches - len(fed.hand) > SPARE and not fed.is_head_in_hand:
        fed.tell(Needed())
        fed.want()
    return len(fed.hand)


@dataclass
class Fed:
    """A feed that is always wanted so many batches, without time. hand: what lanes have, and which of them."""

    machine: FeedMachine
    batches: int
    hand: dict[Range, str] = field(default_factory=dict[Range, str])
    delivered: int = 0

    @property
    def is_head_in_hand(self) -> bool:
        return Range("", self.delivered, 1) in self.hand

    def want(self) -> None:
        self.tell(Wanted(tuple(Range("", self.delivered + number, 1) for number in range(self.batches))))

    def answer(self) -> None:
        for wanted in [*self.hand]:
            self.tell(Answered(self.hand.pop(wanted), wanted, size_bytes=1))

    def tell(self, event: Event) -> None:
        actions: deque[Action] = deque(self.machine.handle(event, 0.0))
        while actions:
            match actions.popleft():
                case Ask(lane, wanted):
                    self.hand[wanted] = lane
                case Prepare(wanted):
                    actions += self.machine.handle(HomePrepared(wanted), 0.0)
                case Compare(lane, wanted):
                    actions += self.machine.handle(Compared(lane, wanted, is_same=True), 0.0)
                case Deliver():
                    self.delivered += 1
                case _:
                    pass

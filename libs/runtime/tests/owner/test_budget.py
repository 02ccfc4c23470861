"""No job journals more than its budget, and none is refused for what another one spends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stretto_runtime.inputs import LARGEST_BYTES
from stretto_runtime.owner.budget import Budget, share_at

REQUESTS = st.lists(
    st.tuples(st.sampled_from(["victim", "hostile"]), st.integers(1, 400), st.floats(0, 3)), max_size=80
)


@given(REQUESTS)
def test_over_any_time_a_job_spends_no_more_than_its_burst_and_its_rate(requests: list[tuple[str, int, float]]) -> None:
    budget, now_s, spent = Budget(1000.0, 100.0), 50.0, {"victim": [(50.0, 0)], "hostile": [(50.0, 0)]}
    for job, size, pause_s in requests:
        now_s += pause_s
        if budget.take(job, size, now_s):
            spent[job].append((now_s, size))
    for taken in spent.values():
        for index, (begin_s, _) in enumerate(taken):
            for end in range(index + 1, len(taken)):
                total = sum(size for _, size in taken[index + 1 : end + 1])
                assert total <= 1000 + 100 * (taken[end][0] - begin_s) + 1e-6


@given(REQUESTS)
def test_a_job_gets_what_it_would_get_alone(requests: list[tuple[str, int, float]]) -> None:
    together, alone, now_s = Budget(1000.0, 100.0), Budget(1000.0, 100.0), 0.0
    for job, size, pause_s in requests:
        now_s += pause_s
        taken = together.take(job, size, now_s)
        if job == "victim":
            assert taken == alone.take(job, size, now_s)


def test_jobs_that_owe_nothing_are_forgotten() -> None:
    """Memory follows the jobs that ask now, not all that ever did."""
    budget = Budget(1000.0, 100.0)
    for number in range(50_000):
        assert budget.take(f"job-{number}", 100, 0.01 * number)
    assert len(budget._spent) <= 10_001


@given(st.lists(st.integers(200, LARGEST_BYTES), min_size=1, max_size=60), st.floats(0, 1.5))
def test_jobs_that_ask_without_end_get_the_share_that_is_left(sizes: list[int], fullness: float) -> None:
    """A new session of an owner, too, begins with that share; the largest request always finds room in a new budget."""
    share, budget, spent = share_at(fullness), Budget(1 << 23, 1000.0), 0
    for number, size in enumerate(sizes):
        taken = budget.take("hostile", size, float(number), share)
        assert taken or number, "nothing was spent yet"
        spent += size * taken
    assert spent <= max(LARGEST_BYTES, share * (1 << 23)) + share * 1000.0 * len(sizes)


def test_budgets_shrink_from_half_on_and_go_on_shrinking() -> None:
    assert [share_at(fullness) for fullness in (None, 0.0, 0.5)] == [1.0, 1.0, 1.0]
    assert [share_at(fullness) for fullness in (0.53125, 0.5625, 0.75)] == [1 / 2, 1 / 4, 1 / 256]
    assert share_at(1.0) < 1e-4

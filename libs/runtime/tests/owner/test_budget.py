"""No job journals more than its budget, and none is refused for what another one spends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stretto_runtime.owner.budget import Budget

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

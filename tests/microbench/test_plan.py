"""The order of a run, and what is held in memory together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from microbench.jobs import Job, Settings, groups, visiting_order


def test_the_order_is_random_and_the_same_for_the_same_seed() -> None:
    jobs = [Job(str(i), {}) for i in range(30)]

    def order(seed: int) -> list[str]:
        return [j.key for _, j in visiting_order(jobs, Settings(rounds=2, seed=seed))]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1)[:30] != order(1)[30:]
    assert order(1)[:30] != [j.key for j in jobs]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1),
    st.integers(100, 300),
)
def test_a_group_fits(sizes: list[tuple[int, int]], free: int) -> None:
    jobs = [
        Job(str(i), {}, need_bytes=keep + more, keep_bytes=keep)
        for i, (keep, more) in enumerate(sizes)
    ]
    made = groups(jobs, free)
    assert [j for group in made for j in group] == jobs
    for group in made:
        held = sum(j.keep_bytes for j in group)
        more = max(j.need_bytes - j.keep_bytes for j in group)
        assert len(group) == 1 or (held <= free / 2 and held + more <= free)


def test_one_group_where_there_is_room() -> None:
    jobs = [Job(key, {}) for key in "abc"]
    assert groups(jobs, None) == groups(jobs, 10) == [jobs]

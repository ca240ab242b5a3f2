"""Virtual time is an order that depends on nothing but the run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tramfl.simulation.clock import Clock


def test_what_is_due_earlier_happens_earlier() -> None:
    clock, done = Clock(), list[str]()
    clock.after(2.0, done.append, "late")
    clock.after(1.0, done.append, "early")
    assert clock.step()
    assert (clock.now, done) == (1.0, ["early"])
    assert clock.step()
    assert (clock.now, done) == (2.0, ["early", "late"])


def test_what_is_due_at_once_happens_in_the_order_of_asking() -> None:
    clock, done = Clock(), list[int]()
    for number in range(20):
        clock.after(1.0, done.append, number)
    while clock.step():
        pass
    assert done == list(range(20))


def test_what_is_asked_for_now_happens_after_what_was_due_now() -> None:
    clock, done = Clock(), list[str]()

    def first() -> None:
        clock.after(0.0, done.append, "asked now")

    clock.after(1.0, first)
    clock.after(1.0, done.append, "due now")
    while clock.step():
        pass
    assert done == ["due now", "asked now"]


def test_nothing_due_is_no_step_and_time_stands_still() -> None:
    clock = Clock(7.0)
    assert not clock.step()
    assert clock.now == 7.0


def test_a_clock_may_begin_where_an_earlier_run_ended() -> None:
    clock = Clock(100.0)
    clock.after(1.5, lambda: None)
    clock.step()
    assert clock.now == 101.5


@given(st.lists(st.floats(0.0, 100.0)))
def test_time_never_runs_backwards_and_ties_keep_their_order(delays: list[float]) -> None:
    clock, done = Clock(), list[tuple[float, int]]()
    for number, delay in enumerate(delays):
        clock.after(delay, lambda number=number: done.append((clock.now, number)))
    while clock.step():
        pass
    assert done == sorted((delay, number) for number, delay in enumerate(delays))

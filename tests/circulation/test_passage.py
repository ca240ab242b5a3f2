from __future__ import annotations

import pytest

from tramfl.circulation.passage import Crossing, Passage

MODEL = 360e6
CHUNK = 8e6


def passage(predicted: float = 3.6) -> Passage:
    return Passage(MODEL, predicted, CHUNK, 0.0)


def test_a_whole_transfer_shows_latency_and_bandwidth() -> None:
    found = passage()
    for chunk in range(46):
        found.arrived(min(chunk * CHUNK, MODEL), 0.5 + 0.08 * chunk)
    shown = found.completed(4.5)
    assert shown is not None
    assert shown == pytest.approx((MODEL, 4.5, 4.5 - 0.08 * 45))


def test_a_resumed_transfer_shows_the_bandwidth_of_what_had_to_travel() -> None:
    found = passage()
    found.arrived(200e6, 1.0)
    found.arrived(MODEL, 3.0)
    assert found.completed(3.4) == Crossing(160e6, 2.0, None)


def test_a_transfer_that_began_again_shows_its_last_try() -> None:
    found = passage()
    for bits, at in ((0.0, 0.1), (80e6, 1.0), (80e6, 9.0), (MODEL, 12.0)):
        found.arrived(bits, at)
    assert found.completed(12.1) == Crossing(280e6, 3.0, None)


def test_weights_that_were_there_already_show_nothing() -> None:
    found = passage()
    found.arrived(MODEL, 0.1)
    assert found.completed(0.2) is None


def test_what_is_left_follows_the_pace_of_the_last_seconds_and_not_that_before() -> None:
    found = passage()
    for chunk in range(6):  # 12 % at 100 Mbit/s, and from there on 1 Mbit/s
        found.arrived(chunk * CHUNK, 0.1 + 0.08 * chunk)
    assert found.seconds_left(1.0) is None, "too early to say"
    # No chunk came in the last two seconds: at most one may have been under way.
    assert found.seconds_left(2.6) == pytest.approx((MODEL - 40e6) / 4e6)
    found.arrived(48e6, 8.5)
    assert found.seconds_left(9.0) == pytest.approx((MODEL - 48e6) / 4e6)
    assert found.given_up(9.0) == Crossing(CHUNK, 2.0, None)


def test_a_long_hop_is_watched_over_a_longer_time() -> None:
    found = passage(predicted=120.0)
    found.arrived(0.0, 0.0)
    found.arrived(CHUNK, 3.0)
    assert found.seconds_left(11.9) is None
    assert found.seconds_left(12.0) == pytest.approx((MODEL - CHUNK) * 12 / CHUNK)


def test_a_look_at_the_very_moment_at_which_the_first_window_ends_never_fails() -> None:
    found = passage(predicted=41.5)
    found.arrived(0.0, 0.1)
    found.arrived(CHUNK, 1.0)
    assert 4.25 - 0.1 == 0.1 * 41.5
    assert 4.25 - 0.1 * 41.5 < 0.1, "by rounding: the window begins before the transfer"
    assert found.seconds_left(4.25) is None
    assert found.seconds_left(4.26) == pytest.approx((MODEL - CHUNK) * 4.15 / CHUNK)


def test_a_hop_has_slowed_down_where_what_is_left_takes_longer_than_was_predicted_for_all_of_it() -> None:
    found = passage(predicted=10.0)
    for second in range(4):
        found.arrived(36e6 * second, float(second))
    assert found.slowed(3.0) is None, "252 Mbit in 7 s"
    found.arrived(110e6, 4.0)
    found.arrived(112e6, 5.0)
    assert found.slowed(5.0) == pytest.approx((MODEL - 112e6) * 2 / 8e6), "a chunk in 2 s, of which 4 Mbit are seen"


def test_a_collapse_is_noticed_sooner_where_the_round_takes_less_than_a_window_elsewhere() -> None:
    def first(found: Passage) -> float:
        return next(n / 4 for n in range(100) if found.slowed(n / 4) is not None)

    stalled = [Passage(MODEL, 3.6, CHUNK, 0.0, elsewhere) for elsewhere in (0.3, 2.0, None)]
    for found in stalled:
        for chunk in range(11):  # 100 Mbit/s until 0.8 s, and then nothing more
            found.arrived(chunk * CHUNK, 0.08 * chunk)
    assert [first(found) for found in stalled] == [1.75, 2.0, 2.0]


def test_a_slow_start_or_a_little_less_than_predicted_is_no_collapse() -> None:
    found = Passage(MODEL, 3.6, CHUNK, 0.0, 0.3)
    found.arrived(0.0, 0.0)
    found.arrived(CHUNK, 0.5)
    for chunk in range(2, 8):
        found.arrived(chunk * CHUNK, 0.5 + 0.16 * (chunk - 1))
    assert [found.slowed(n / 4) for n in range(7)] == [None] * 7, "half of the rate that was predicted"


def test_a_broken_connection_shows_the_pace_before_the_silence() -> None:
    found = passage()
    for bits, at in ((0.0, 0.0), (80e6, 1.0)):
        found.arrived(bits, at)
    assert found.broken() == Crossing(80e6, 1.0, None)


def test_a_copy_that_let_a_hop_pass_shows_nothing() -> None:
    found = passage()
    found.arrived(0.0, 0.0)
    found.paused()
    found.arrived(MODEL, 9.0)
    assert found.completed(9.1) is None
    assert found.given_up(9.1) is None
    assert found.broken() is None

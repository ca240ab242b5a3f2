from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.runtime.loads.links import FIRST_CALIBRATION, LinkMeter, LinksMemory
from tramfl.scheduling.predictors import predictor_names

NAMES = pytest.mark.parametrize("name", predictor_names())

BITS = st.floats(1e4, 1e10)
LINK = {"latency": st.floats(0.0, 3.0), "bandwidth": st.floats(1e5, 1e10), "bits": BITS}


def hop_seconds(meter: LinkMeter, bits: float, peer: str = "b") -> float:
    found = meter.bandwidth(peer)
    assert found is not None
    return bits / found


@NAMES
@given(**LINK)
def test_a_link_that_does_not_change_is_predicted_from_its_first_transfer_on(
    name: str, latency: float, bandwidth: float, bits: float
) -> None:
    meter = LinkMeter(name)
    meter.probed("b", bandwidth, latency, 0.0)
    assert meter.bandwidth("b") == pytest.approx(bandwidth)
    actual = latency + bits / bandwidth
    for at in range(1, 6):
        meter.moved("b", "to", bits, actual, at, latency)
        assert hop_seconds(meter, bits) == pytest.approx(actual, rel=1e-6)


@given(**LINK)
def test_a_probe_predicts_the_whole_first_hop_and_not_only_its_bits(
    latency: float, bandwidth: float, bits: float
) -> None:
    meter = LinkMeter("last", bits)
    meter.probed("b", bandwidth, latency, 0.0)
    assert hop_seconds(meter, bits) == pytest.approx(latency + bits / bandwidth)


@given(**LINK, part=st.floats(0.3, 2.0))
def test_a_part_of_a_model_predicts_a_whole_one(latency: float, bandwidth: float, bits: float, part: float) -> None:
    meter = LinkMeter("last", bits)
    meter.probed("b", bandwidth, latency, 0.0)
    meter.moved("b", "to", part * bits, part * bits / bandwidth, 2.0)  # resumed, or given up
    assert hop_seconds(meter, bits) == pytest.approx(latency + bits / bandwidth, rel=1e-6)


@given(**LINK, size=BITS)
def test_after_a_restart_with_another_model_its_hop_is_predicted(
    latency: float, bandwidth: float, bits: float, size: float
) -> None:
    latency = min(latency, bits / bandwidth)
    before, after = LinkMeter("last"), LinkMeter("last", size)
    before.moved("b", "to", bits, latency + bits / bandwidth, 1.0, latency)
    after.recall(before.memory())
    assert hop_seconds(after, size) == pytest.approx(latency + size / bandwidth, rel=1e-6)


def test_a_quiet_link_stays_as_fast_as_it_was() -> None:
    """42.6 -> 18.5 -> 9.6 Mbit/s on a link that always gave 45: what a silence and low probes did before."""
    meter = LinkMeter("blend", 360e6)
    for at in (0.0, 20.0):
        meter.moved("b", "to", 360e6, 8.1, at, 0.1)
    before = meter.bandwidth("b")
    for at in (100.0, 200.0, 4000.0):
        meter.probed("b", 25e6, 0.04, at)  # low, as probes often are, and yet no sign of a change
        assert meter.bandwidth("b") == before


def test_a_probe_that_differs_by_far_is_a_change_of_the_link_until_a_transfer_shows_better() -> None:
    meter = LinkMeter("last", 360e6)
    meter.moved("b", "to", 360e6, 8.0, 0.0, 0.0)
    meter.probed("b", 5e6, 0.04, 60.0)
    assert meter.bandwidth("b") == pytest.approx(5e6)
    meter.moved("b", "to", 360e6, 9.0, 100.0, 0.0)
    assert meter.bandwidth("b") == pytest.approx(40e6)
    # What the probe found was wrong by a factor of 8. The next one is not believed as easily.
    meter.probed("b", 16e6, 0.04, 200.0)
    assert meter.bandwidth("b") == pytest.approx(40e6)


def test_a_probe_never_overrides_a_transfer_that_ended_after_it_began() -> None:
    meter = LinkMeter("last", 360e6)
    meter.moved("b", "to", 360e6, 8.0, 10.0, 0.0)
    meter.probed("b", 1e6, 0.04, 9.5)
    assert meter.bandwidth("b") == pytest.approx(45e6)


def test_a_transfer_that_was_given_up_lowers_the_rate_and_a_probe_raises_it_again() -> None:
    meter = LinkMeter("last", 360e6)
    meter.moved("b", "to", 360e6, 3.6, 0.0, 0.0)
    meter.moved("b", "to", 8e6, 8.0, 20.0)  # collapsed to 1 Mbit/s
    assert meter.bandwidth("b") == pytest.approx(1e6)
    meter.probed("b", 90e6, 0.04, 60.0)
    assert meter.bandwidth("b") == pytest.approx(90e6, rel=0.05)


def test_the_two_directions_of_a_link_are_learnt_apart() -> None:
    meter = LinkMeter("last", 1e8)
    meter.moved("b", "to", 1e8, 1.0, 0.0, 0.0)
    meter.moved("b", "from", 1e8, 10.0, 1.0, 0.0)
    assert meter.bandwidth("b") == pytest.approx(1e8)
    assert meter.bandwidth("b", "from") == pytest.approx(1e7)
    again = LinkMeter("last", 1e8)
    again.recall(meter.memory())
    assert again.bandwidth("b", "from") == pytest.approx(1e7)
    assert again.has_carried("b", "to")
    assert not again.has_carried("c", "to")


def test_a_few_bits_that_a_resumed_transfer_still_lacked_say_nothing() -> None:
    meter = LinkMeter("last", 360e6)
    meter.moved("b", "to", 360e6, 8.0, 0.0, 0.0)
    meter.moved("b", "to", 1e6, 0.2, 1.0)
    assert meter.bandwidth("b") == pytest.approx(45e6)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["moved", "part", "probed"]), st.sampled_from("bc"), st.floats(1, 1e12), st.floats(1e-6, 1e5)
    )
)


@NAMES
@given(events=EVENTS, bits=st.none() | BITS, traffic=st.none() | st.floats(0, 1e12))
def test_a_link_that_was_observed_has_a_bandwidth_and_a_memory(
    name: str, events: list[tuple[str, str, float, float]], bits: float | None, traffic: float | None
) -> None:
    meter = LinkMeter(name, bits)
    for what, peer, amount, seconds in events:
        if what == "probed":
            meter.probed(peer, amount, seconds, 0.0)
        else:
            meter.moved(peer, "to", amount, seconds, 0.0, seconds / 3 if what == "moved" else None)
        found = meter.bandwidth(peer, "to", traffic)
        assert found is not None
        assert 0 < found < math.inf
    again = LinkMeter(name, bits)
    again.recall(msgspec.json.decode(msgspec.json.encode(meter.memory()), type=LinksMemory))
    assert again.has_carried("b", "to") == meter.has_carried("b", "to")


def test_an_unknown_link_is_probed_at_once_and_then_ever_more_rarely() -> None:
    meter, probes, now = LinkMeter("last"), [], 0.0
    assert meter.bandwidth("b") is None
    while now < 1000.0:
        if meter.is_due("b", now):
            meter.probed("b", 4e6, 0.0, now)
            probes.append(now)
        now += 1.0
    assert probes == [0.0, 30.0, 90.0, 210.0, 450.0, 930.0]
    meter.moved("b", "to", 8e6, 1.0, 1000.0)
    assert not meter.is_due("b", 999.0 + FIRST_CALIBRATION)
    assert meter.is_due("b", 1000.0 + FIRST_CALIBRATION)


def test_new_traffic_of_others_takes_its_part_but_leaves_half() -> None:
    meter = LinkMeter("last")
    meter.moved("b", "to", 100e6, 1.0, 0.0)
    assert meter.bandwidth("b", "to", 30e6) == pytest.approx(70e6)
    assert meter.bandwidth("b", "to", 900e6) == pytest.approx(50e6)


def test_traffic_that_was_there_already_is_not_taken_off_twice() -> None:
    meter = LinkMeter("last")
    meter.bandwidth("b", "to", 30e6)
    meter.moved("b", "to", 70e6, 1.0, 0.0)
    assert meter.bandwidth("b", "to", 30e6) == pytest.approx(70e6)
    assert meter.bandwidth("b", "to", 0.0) == pytest.approx(70e6)


@pytest.mark.parametrize(("bits", "seconds"), [(0.0, 1.0), (8.0, 0.0), (8.0, -1.0), (math.nan, 1.0), (8.0, math.inf)])
def test_a_transfer_that_says_nothing_changes_nothing(bits: float, seconds: float) -> None:
    meter = LinkMeter("last")
    meter.moved("b", "to", bits, seconds, 0.0)
    meter.probed("b", math.inf, 0.0, 0.0)
    meter.probed("b", 0.0, 0.0, 0.0)
    assert meter.bandwidth("b") is None

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.runtime.loads.links import FRESH_SECONDS, LinkMeter, LinksMemory
from tramfl.scheduling.predictors import predictor_names

NAMES = pytest.mark.parametrize("name", predictor_names())


BITS = st.floats(1e4, 1e10)
LINK = {"overhead": st.floats(0.0, 3.0), "bandwidth": st.floats(1e5, 1e10), "bits": BITS}


@NAMES
@given(**LINK)
def test_predicted_transfer_times_are_those_of_the_runs_models_whatever_the_latency(
    name: str, overhead: float, bandwidth: float, bits: float
) -> None:
    meter = LinkMeter(name)
    meter.probed("b", bandwidth, 0.0)
    assert meter.bandwidth("b", 0.0) == pytest.approx(bandwidth)
    actual = overhead + bits / bandwidth
    for at in range(1, 6):
        meter.moved("b", bits, actual, at)
        found = meter.bandwidth("b", at)
        assert found is not None
        assert bits / found == pytest.approx(actual, rel=1e-6)


@NAMES
@given(**LINK)
def test_a_later_probe_foretells_the_whole_transfer_and_not_only_its_bits(
    name: str, overhead: float, bandwidth: float, bits: float
) -> None:
    meter = LinkMeter(name, model_bits=bits)
    actual = overhead + bits / bandwidth
    meter.probed("b", bandwidth, 0.0)
    meter.moved("b", bits, actual, 1.0)
    meter.probed("c", bandwidth, 1.0)  # nothing was ever sent there
    found = meter.bandwidth("c", 1.0)
    assert found is not None
    assert bits / found == pytest.approx(actual, rel=1e-6)


@given(**LINK, part=st.floats(0.001, 2.0))
def test_a_transfer_of_another_size_is_converted_or_passed_by(
    overhead: float, bandwidth: float, bits: float, part: float
) -> None:
    meter = LinkMeter("last", model_bits=bits)
    actual = overhead + bits / bandwidth
    meter.probed("b", bandwidth, 0.0)
    meter.moved("b", bits, actual, 1.0)
    meter.moved("b", part * bits, overhead + part * bits / bandwidth, 2.0)
    found = meter.bandwidth("b", 2.0)
    assert found is not None
    assert bits / found == pytest.approx(actual, rel=0.11)


@given(**LINK, size=BITS)
def test_after_a_restart_with_another_model_the_overhead_is_still_known(
    overhead: float, bandwidth: float, bits: float, size: float
) -> None:
    before, after = LinkMeter("last"), LinkMeter("last", model_bits=size)
    before.probed("b", bandwidth, 0.0)
    before.moved("b", bits, overhead + bits / bandwidth, 1.0)
    after.recall(before.memory())
    after.probed("b", bandwidth, 0.0)
    found = after.bandwidth("b", 0.0)
    assert found is not None
    assert size / found == pytest.approx(overhead + size / bandwidth, rel=1e-6)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["moved", "probed"]), st.sampled_from("bc"), st.floats(1, 1e12), st.floats(1e-6, 1e5))
)


@NAMES
@given(events=EVENTS, bits=st.none() | BITS, traffic=st.none() | st.floats(0, 1e12))
def test_whatever_was_observed_a_fresh_link_has_a_bandwidth_and_a_memory(
    name: str, events: list[tuple[str, str, float, float]], bits: float | None, traffic: float | None
) -> None:
    meter, seen = LinkMeter(name, model_bits=bits), set()
    for what, peer, amount, seconds in events:
        if what == "probed":
            meter.probed(peer, amount, 0.0)
            seen.add(peer)
        else:
            meter.moved(peer, amount, seconds, 0.0)
        found = meter.bandwidth(peer, 0.0, traffic)
        assert (found is None and peer not in seen) or (found is not None and 0 < found < math.inf)
    again = LinkMeter(name, model_bits=bits)
    again.recall(msgspec.json.decode(msgspec.json.encode(meter.memory()), type=LinksMemory))
    assert again.bandwidth("b", 0.0) is None


def test_an_unknown_or_stale_link_has_no_bandwidth_until_it_is_probed() -> None:
    meter = LinkMeter("last")
    assert meter.bandwidth("b", 0.0) is None
    meter.moved("b", 8e6, 1.0, 10.0)
    assert meter.bandwidth("b", 10.0 + FRESH_SECONDS) == pytest.approx(8e6)
    assert meter.bandwidth("b", 10.1 + FRESH_SECONDS) is None
    assert meter.bandwidth("c", 10.0) is None
    meter.probed("b", 4e6, 100.0)
    assert meter.bandwidth("b", 100.0) == pytest.approx(4e6)


def test_new_traffic_of_others_takes_its_part_but_leaves_half() -> None:
    meter = LinkMeter("last")
    meter.moved("b", 100e6, 1.0, 0.0)
    assert meter.bandwidth("b", 1.0, 30e6) == pytest.approx(70e6)
    assert meter.bandwidth("b", 1.0, 900e6) == pytest.approx(50e6)


def test_traffic_that_was_there_already_is_not_taken_off_twice() -> None:
    meter = LinkMeter("last")
    meter.bandwidth("b", 0.0, 30e6)
    meter.moved("b", 70e6, 1.0, 0.0)
    assert meter.bandwidth("b", 1.0, 30e6) == pytest.approx(70e6)
    assert meter.bandwidth("b", 1.0, 0.0) == pytest.approx(70e6)


@pytest.mark.parametrize(("bits", "seconds"), [(0.0, 1.0), (8.0, 0.0), (8.0, -1.0), (math.nan, 1.0)])
def test_a_transfer_that_says_nothing_changes_nothing(bits: float, seconds: float) -> None:
    meter = LinkMeter("last")
    meter.moved("b", bits, seconds, 0.0)
    meter.probed("b", math.inf, 0.0)
    meter.probed("b", 0.0, 0.0)
    assert meter.bandwidth("b", 0.0) is None

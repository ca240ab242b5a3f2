from __future__ import annotations

from tramfl.methods import method_names
from tramfl.reporting.colours import KNOWN, in_order, kind_of, looks


def test_policies_of_the_paper_never_share_a_colour_a_line_or_a_marker() -> None:
    for part in range(len(KNOWN["tram"])):
        assert len({look[part] for look in KNOWN.values()}) == len(KNOWN)


def test_a_policy_from_outside_looks_the_same_whatever_is_drawn_beside_it() -> None:
    assert looks(["mine"])["mine"] == looks(["load-aware", "mine", "random"])["mine"]
    assert looks(["mine"])["mine"].colour not in {look.colour for look in KNOWN.values()}


def test_policies_from_outside_do_not_look_alike() -> None:
    assert len(set(looks([f"policy-{i}" for i in range(8)]).values())) == 8


def test_more_policies_than_looks_are_still_drawn() -> None:
    assert len(looks([f"policy-{i}" for i in range(30)])) == 30


def test_the_papers_method_comes_first() -> None:
    assert in_order(["zebra", "random", "ant", "load-aware", "random"]) == ["load-aware", "random", "ant", "zebra"]


def test_no_two_methods_look_alike_and_methods_of_different_families_differ_in_colour() -> None:
    found = looks([*method_names(), "their-own", "another"])
    assert len({(look.colour, look.dash) for look in found.values()}) == len(found)
    race = ["load-aware", "express", "fedavg-m-of-n", "gossip-async", "feddc", "pdmm", "cmfd"]
    assert len({looks(race)[name].colour for name in race}) == len(race)
    assert all(looks(race)[name] == found[name] for name in race)


def test_a_race_with_one_that_is_no_policy_of_the_papers_is_a_race_of_methods() -> None:
    assert kind_of(["load-aware", "random"]) == "policy"
    assert kind_of(["load-aware", "gossip"]) == "method"

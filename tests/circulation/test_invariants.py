"""Each invariant objects to a step made by hand that breaks it, and to no honest one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tramfl.circulation.changes import SetStatus
from tramfl.circulation.custody import Entry, Record, Safe, Weights, first_record
from tramfl.circulation.invariants import InvariantBroken, Invariants
from tramfl.circulation.phases import Assignment, Outcome
from tramfl.notation import Decision, Ledger, Loads

FIRST = first_record("run", 0, "w0", (0, 1), labels=1)


def committed(record: Record, digest: str, samples: int, seconds: float = 1.0) -> Record:
    """The record after a round that took a second, by the clock."""
    since = record.weights.since + 1.0
    return replace(record, weights=Weights(digest, (0,), since), ledger=record.ledger.after((samples,), seconds))


class Watch:
    """Invariants over a run of two nodes whose disks are sets."""

    def __init__(self) -> None:
        self.disks: list[set[str]] = [{"w0"}, {"w0"}]
        self.invariants = Invariants(FIRST, lambda node: self.disks[node], stall_seconds=10.0, unsafe_rounds=2)
        self.record = FIRST

    def train(self, parent: str, digest: str, samples: int) -> None:
        self.invariants.trained(parent, digest, (samples,), accepted=True)
        self.disks[0].add(digest)

    def swap(self, after: Record, *, epoch: int | None = None, at: float = 1.0) -> None:
        self.invariants.swapped(0, self.record.epoch if epoch is None else epoch, self.record, after, at)
        self.record = after


def broken(number: int) -> pytest.RaisesExc[InvariantBroken]:
    return pytest.RaisesExc(InvariantBroken, check=lambda e: e.number == number)


def outcome(reporting: int = 2, holder: int = 0) -> Outcome:
    """A round that node 0 trained, decided by `holder` when this many nodes reported."""
    decision = Decision("by hand", 0, (5,), 1.0, 0.0, 0.0, "So be it.")
    flops = tuple(1e9 if node < reporting else float("nan") for node in range(2))
    return Outcome(Assignment(holder, decision, Loads(flops, (1e6, 1e6)), 0.0), 0, 1.0, 0.0, 0.0, 0.0)


def after_two_rounds() -> Watch:
    watch = Watch()
    watch.train("w0", "w1", 5)
    watch.swap(committed(FIRST, "w1", 5))
    watch.train("w1", "w2", 5)
    watch.swap(committed(watch.record, "w2", 5))
    watch.invariants.stepped(2.0, 0.0)
    return watch


def test_an_honest_run_breaks_nothing() -> None:
    watch = after_two_rounds()
    watch.disks[1].add("w2")
    ledger = watch.record.ledger
    weights = replace(watch.record.weights, copies=(0, 1))
    watch.swap(replace(watch.record, holder=1, weights=weights, safe=Safe(2, "w2", (0, 1), ledger)))
    watch.swap(replace(watch.record, epoch=2))
    watch.invariants.stepped(3.0, 0.0)


def test_1_a_record_that_changed_without_a_swap() -> None:
    watch = after_two_rounds()
    watch.record = FIRST
    with broken(1):
        watch.swap(FIRST)


def test_1_an_epoch_that_falls() -> None:
    watch = after_two_rounds()
    with broken(1):
        watch.swap(replace(watch.record, epoch=0))


def test_1_a_round_that_falls_within_an_epoch() -> None:
    watch = after_two_rounds()
    with broken(1):
        watch.swap(FIRST)


def test_1_a_round_may_fall_with_a_new_epoch() -> None:
    after_two_rounds().swap(replace(FIRST, epoch=2))


def test_1_a_safe_round_that_falls() -> None:
    watch = after_two_rounds()
    safe = Safe(2, "w2", (0,), watch.record.ledger)
    watch.swap(replace(watch.record, safe=safe))
    with broken(1):
        watch.swap(replace(watch.record, safe=FIRST.safe))


@pytest.mark.parametrize("digest", ["w0", "w2"])
def test_2_a_copy_that_is_not_on_the_disk_of_a_node_named_for_it(digest: str) -> None:
    watch = after_two_rounds()
    watch.disks[0].remove(digest)
    with broken(2):
        watch.invariants.stepped(2.0, 0.0)


def test_3_a_ledger_that_counts_a_round_twice() -> None:
    watch = after_two_rounds()
    watch.train("w2", "w3", 5)
    with broken(3):
        watch.swap(committed(watch.record, "w3", 10))


def test_3_a_safe_ledger_of_other_weights() -> None:
    watch = after_two_rounds()
    with broken(3):
        watch.swap(replace(watch.record, safe=Safe(2, "w2", (0,), FIRST.ledger)))


def test_3_a_row_for_a_round_that_never_was() -> None:
    watch = after_two_rounds()
    with broken(3):
        watch.invariants.closed(outcome(), replace(watch.record, ledger=Ledger((99,), 2.0, 2)))


def test_3_two_rows_for_one_round() -> None:
    watch = after_two_rounds()
    watch.invariants.closed(outcome(), watch.record)
    with broken(3):
        watch.invariants.closed(outcome(), watch.record)


@pytest.mark.parametrize("epoch", [0, 2])
def test_4_a_change_made_under_another_epoch(epoch: int) -> None:
    watch = after_two_rounds()
    watch.train("w2", "w3", 5)
    with broken(4):
        watch.swap(committed(watch.record, "w3", 5), epoch=epoch)


def test_5_no_round_for_too_long_though_nothing_is_in_the_way() -> None:
    watch = after_two_rounds()
    watch.invariants.stepped(11.0, 0.0)
    with broken(5):
        watch.invariants.stepped(11.1, 0.0)


def test_5_the_time_in_which_something_was_in_the_way_does_not_count() -> None:
    watch = after_two_rounds()
    watch.invariants.stepped(500.0, None)
    watch.invariants.stepped(505.0, 500.0)
    with broken(5):
        watch.invariants.stepped(510.1, 500.0)


def test_6_a_second_round_that_is_committed_while_the_run_is_paused() -> None:
    watch = after_two_rounds()
    watch.swap(replace(watch.record, status="paused"))
    for digest in ("w3", "w4"):
        watch.train(watch.record.weights.digest, digest, 5)
        after = committed(watch.record, digest, 5)
        if digest == "w3":
            watch.swap(after)
    with broken(6):
        watch.swap(after)


def test_6_each_pause_may_see_the_round_in_hand() -> None:
    watch = after_two_rounds()
    for digest in ("w3", "w4"):
        watch.swap(replace(watch.record, status="paused"))
        watch.train(watch.record.weights.digest, digest, 5)
        watch.swap(committed(watch.record, digest, 5))
        watch.swap(replace(watch.record, status="running"))


def test_6_a_stopped_run_that_goes_on_and_an_order_that_changes_more_than_the_status() -> None:
    watch = after_two_rounds()
    with broken(6):
        watch.swap(replace(watch.record, status="paused", holder=1))
    watch.swap(replace(watch.record, status="stopped"))
    with broken(6):
        watch.swap(replace(watch.record, status="running"))


def test_6_an_answer_that_is_not_what_was_ordered_or_never_was_in_the_register() -> None:
    watch = after_two_rounds()
    for wrong in (watch.record, replace(watch.record, status="paused")):
        watch.invariants.ordered(1, SetStatus(0, "paused"))
        with broken(6):
            watch.invariants.answered(1, wrong)
    watch.invariants.ordered(2, SetStatus(0, "paused"))
    watch.swap(replace(watch.record, status="paused"))
    watch.invariants.answered(2, watch.record)
    watch.invariants.ordered(3, SetStatus(0, "running"))
    watch.invariants.answered(3, None)


def test_7_a_run_at_rest_whose_newest_weights_stay_on_one_disk() -> None:
    watch = after_two_rounds()
    watch.swap(replace(watch.record, status="stopped"), at=5.0)
    watch.invariants.stepped(14.0, 0.0)
    watch.invariants.stepped(100.0, None)
    with broken(7):
        watch.invariants.stepped(16.0, 0.0)


def test_8_a_holder_that_leaves_with_the_only_copy_or_though_another_node_is_there() -> None:
    watch = after_two_rounds()
    watch.invariants.departed(1, release=True, others=True)
    watch.invariants.departed(0, release=False, others=False)
    with broken(8):
        watch.invariants.departed(0, release=True, others=False)
    with broken(8):
        watch.invariants.departed(0, release=False, others=True)


def test_9_an_earlier_life_that_goes_on() -> None:
    watch = after_two_rounds()
    watch.invariants.doubled(0, 4.0, limit=5.0)
    with broken(9):
        watch.invariants.doubled(0, 6.0, limit=5.0)


def test_10_a_third_round_that_lies_at_one_node_alone_though_another_reports() -> None:
    watch = after_two_rounds()
    watch.invariants.closed(outcome(), watch.record)
    watch.train("w2", "w3", 5)
    watch.swap(committed(watch.record, "w3", 5))
    with broken(10):
        watch.invariants.closed(outcome(), watch.record)


@pytest.mark.parametrize(("reporting", "holder"), [(1, 0), (2, 1)])
def test_10_a_third_round_may_lie_at_a_node_that_is_alone_or_was_sent_the_model(reporting: int, holder: int) -> None:
    watch = after_two_rounds()
    watch.swap(replace(watch.record, holder=holder))
    watch.swap(replace(watch.record, holder=0))
    watch.train("w2", "w3", 5)
    watch.swap(committed(watch.record, "w3", 5))
    watch.invariants.closed(outcome(reporting, holder), watch.record)


def test_12_a_round_that_was_decided_by_a_node_without_the_model() -> None:
    watch = after_two_rounds()
    with broken(12):
        watch.invariants.closed(outcome(holder=1), watch.record)


def removed(watch: Watch, node: int) -> None:
    members = list(watch.record.members)
    members[node] = Entry(members[node].name, None)
    watch.swap(replace(watch.record, members=tuple(members)))


def test_13_a_round_committed_by_a_node_that_is_no_member() -> None:
    watch = after_two_rounds()
    removed(watch, 0)
    watch.train("w2", "w3", 5)
    with broken(13):
        watch.swap(committed(watch.record, "w3", 5))


def test_13_a_holder_that_is_no_member() -> None:
    watch = after_two_rounds()
    removed(watch, 1)
    with broken(13):
        watch.swap(replace(watch.record, holder=1))


@pytest.mark.parametrize("names", [("1", "0"), ("0",)])
def test_13_a_node_that_lost_its_number(names: tuple[str, ...]) -> None:
    watch = after_two_rounds()
    with broken(13):
        watch.swap(replace(watch.record, members=tuple(map(Entry, names))))


def test_13_a_change_of_the_members_that_changes_more() -> None:
    watch = after_two_rounds()
    with broken(13):
        watch.swap(replace(watch.record, holder=None, members=(*watch.record.members, Entry("2"))))


@pytest.mark.parametrize("seconds", [0.9, 1.1])
def test_14_a_ledger_with_less_or_more_seconds_than_have_passed(seconds: float) -> None:
    watch = after_two_rounds()
    watch.train("w2", "w3", 5)
    with broken(14):
        watch.swap(committed(watch.record, "w3", 5, seconds))


def test_14_a_pause_does_not_count() -> None:
    watch = after_two_rounds()
    watch.swap(replace(watch.record, status="paused"))
    watch.swap(replace(watch.record, status="running"))
    watch.train("w2", "w3", 5)
    watch.swap(committed(watch.record, "w3", 5, 0.5))

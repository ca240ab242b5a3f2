"""Going back to a kept version: what is kept, what a rollback makes of the record, and what nodes make of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.circulation.test_machine import Node
from tramfl.circulation.changes import Commit, HandOver, RemoveMember, RollBack, SetStatus, TakeOver
from tramfl.circulation.commands import AnswerOrder, Discard, Nudge, Swap
from tramfl.circulation.custody import MemoryRegister, Record, first_record
from tramfl.circulation.events import Ordered, RecordRead, RecordSeen
from tramfl.circulation.phases import Copy, Following, Halted, Training
from tramfl.circulation.soundness import fault_in_step

FIRST = replace(first_record("run", 0, "w0", (0, 1, 2), labels=1), keep_versions=2, keep_every=2)


def hop(record: Record, to: int) -> Record:
    """A round that the holder trains, and then hands over: its weights are safe."""
    holder, parent = record.holder, record.weights.digest
    assert holder is not None
    commit = Commit(record.epoch, record.round, parent, f"w{record.round + 1}", (5,), 1.0, record.round + 1.0)
    after = commit.applied(record, holder)
    assert after is not None
    handed = HandOver(after.epoch, after.round, after.weights.digest, to).applied(after, holder)
    assert handed is not None
    return handed


def after(rounds: int, status: str = "paused") -> Record:
    record = FIRST
    for k in range(rounds):
        record = hop(record, (k + 1) % 3)
    return replace(record, status=status)


def back(record: Record, round_: int) -> Record | None:
    return RollBack(record.epoch, round_).applied(record, 0)


def test_the_last_versions_are_kept_some_rounds_apart_with_the_nodes_that_have_them() -> None:
    kept = [[version.round for version in after(rounds).kept] for rounds in range(8)]
    assert kept == [[], [0], [0], [0, 2], [0, 2], [2, 4], [2, 4], [4, 6]]
    assert [version.copies for version in after(7).kept] == [(0, 1), (0, 2)]
    assert [version.round for version in after(7).versions] == [4, 6], "and round 7 is the present one"
    assert after(7).ledger.round == 7


def test_a_run_that_keeps_no_versions_keeps_none() -> None:
    assert hop(hop(replace(FIRST, keep_versions=0), 1), 2).kept == ()


def test_a_rollback_makes_the_record_what_it_was_under_a_new_epoch() -> None:
    record = after(7)
    found = back(record, 4)
    assert found is not None
    assert (found.epoch, found.round, found.weights.digest, found.safe.digest) == (2, 4, "w4", "w4")
    assert (found.ledger, found.weights.copies, found.status) == (record.kept[0].ledger, (0, 1), "paused")
    assert found.kept == ()
    assert found.holder == 1, "the present holder, as it has the version"
    assert fault_in_step(record, found) is None
    assert fault_in_step(record, hop(replace(found, status="running"), 0)) is None, "and what is done since"


@pytest.mark.parametrize("round_", [-1, 0, 5, 7, 99])
def test_no_run_goes_back_to_a_round_that_is_not_kept(round_: int) -> None:
    assert back(after(7), round_) is None


def test_a_running_run_is_not_rolled_back_and_a_stopped_one_is() -> None:
    assert back(after(7, "running"), 4) is None
    stopped = back(after(7, "stopped"), 4)
    assert stopped is not None
    assert stopped.status == "stopped"


def test_a_rollback_under_another_epoch_is_void() -> None:
    assert RollBack(2, 4).applied(after(7), 0) is None


def test_a_version_that_no_member_has_is_not_gone_back_to_and_a_removed_site_does_not_hold() -> None:
    record = after(7)
    without = RemoveMember(1, "0").applied(record, 1)
    assert without is not None
    found = back(without, 6)
    assert found is not None
    assert found.holder == 2
    neither = RemoveMember(1, "2").applied(without, 1)
    assert neither is not None
    assert [version.round for version in neither.versions] == [4]
    assert back(neither, 6) is None


def test_a_takeover_keeps_the_versions() -> None:
    record = after(7, "running")
    taken = TakeOver(1, 0, "w7").applied(record, 0)
    assert taken is not None
    assert taken.kept == record.kept


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_record_whose_safe_round_fell_without_a_kept_version_is_not_sound(epoch: int) -> None:
    assert fault_in_step(replace(after(7), kept=()), replace(after(3), epoch=epoch)) is not None
    assert (fault_in_step(after(7), replace(after(5), epoch=epoch)) is None) == (epoch == 2)


def test_an_order_rolls_the_run_back_and_lets_the_new_holder_know() -> None:
    register = MemoryRegister(replace(after(6), holder=2))
    node = Node(1, register, (Copy("w4", 4, 1),)).join()
    node.tell(Ordered(9.0, 5, RollBack(0, 4)))
    node.tell(RecordRead(9.0, node.state.ticket, register.read()))
    assert node.asked(Swap).record.epoch == 2
    node.swap(9.0)
    assert node.asked(AnswerOrder).record == node.record
    assert (node.record.round, node.record.holder) == (4, 0)
    assert node.asked(Nudge).to == 0


def test_nodes_keep_the_versions_that_the_record_counts_on_them_for_and_delete_the_others() -> None:
    disk = tuple(Copy(f"w{k}", k, 1) for k in range(8))
    node = Node(2, MemoryRegister(after(7)), disk).join()
    assert {copy.digest for copy in node.state.copies} == {"w6", "w7"}, "w4 is kept at nodes 0 and 1"
    assert set(node.asked(Discard).digests) == {"w0", "w1", "w2", "w3", "w4", "w5"}


def test_a_holder_that_trains_when_the_run_is_rolled_back_drops_its_round_and_is_what_the_record_says() -> None:
    register = MemoryRegister(after(7, "running"))
    node = (
        Node(1, register, (Copy("w7", 7, 1), Copy("w4", 4, 1))).join(at=8.0).hear(0, 1, 2, at=8.0).decide(1, at=8.0)
    )
    assert isinstance(node.state.phase, Training)
    paused = SetStatus(1, "paused").applied(node.record, 1)
    assert paused is not None
    for revision, record in ((1, paused), (2, back(paused, 4))):
        assert record is not None
        seen = register.swap(revision, record)
        assert seen is not None
        node.tell(RecordSeen(9.0, seen))
    assert isinstance(node.state.phase, Halted)
    assert [copy.digest for copy in node.state.copies] == ["w4"]
    other = Node(2, register, (Copy("w6", 6, 1),)).join()
    assert isinstance(other.state.phase, Following)
    assert other.state.copies == ()

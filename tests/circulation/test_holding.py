"""The holder's round, driven by hand: gathering, deciding, sending, training, and what fails on the way."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from tests.circulation.test_machine import ANSWERS, LIMITS, PHASES, Node, decision, holder, register, set_status
from tramfl.circulation.changes import Commit, HandOver
from tramfl.circulation.commands import (
    Acknowledge,
    AskLoads,
    CancelSend,
    CancelTraining,
    CloseRound,
    Decide,
    SendModel,
    Store,
    Swap,
    Train,
    Wake,
)
from tramfl.circulation.custody import Weights
from tramfl.circulation.events import (
    Acknowledged,
    Decided,
    LoadMissing,
    LoadReported,
    ModelArrived,
    RecordSeen,
    Rejected,
    SendFailed,
    SendSlowed,
    Stored,
    StoreFailed,
    TrainingFailed,
    Woke,
)
from tramfl.circulation.phases import (
    Copy,
    Deciding,
    Following,
    Gathering,
    Halted,
    Sending,
    SlowHop,
    Swapping,
    Training,
    Waiting,
)
from tramfl.notation import Candidate, Ledger

# A round in which nothing fails.


def test_a_holder_asks_everyone_for_loads_as_soon_as_it_knows_the_record() -> None:
    node = holder()
    assert node.commands == (AskLoads(node.ticket, 1, (0, 1, 2)), Wake(node.ticket, 2.0))


def test_a_holder_lets_the_policy_decide_once_everyone_has_reported() -> None:
    node = holder().hear(0, 1)
    assert node.commands == ()
    ask = node.hear(2).asked(Decide)
    assert ask.ledger == Ledger((0, 0))
    assert ask.loads.flops == (1e9, 1e9 + 1, 1e9 + 2)
    assert ask.loads.bandwidth == (math.inf, math.inf, math.inf), "every node has w_0"


def test_a_node_that_has_the_newest_weights_is_charged_no_transfer_and_its_link_is_kept_for_copies() -> None:
    node = holder()
    now = node.register.read()
    fewer = node.register.swap(now.revision, replace(now.record, weights=Weights("w0", (0, 2))))
    assert fewer is not None
    node.tell(RecordSeen(0.0, fewer)).hear(0, 1, 2)
    assert node.asked(Decide).loads.bandwidth == (math.inf, 1e6, math.inf)
    assignment = node.decide(1).asked(SendModel).offer.assignment
    assert assignment is not None
    assert (assignment.having, assignment.loads.bandwidth) == ((2,), (math.inf, 1e6, 1e6))


def test_a_round_passes_from_holder_to_receiver_and_is_committed_there() -> None:
    sender = holder().hear(0, 1, 2).decide(1, at=0.0)
    receiver = Node(1, sender.register).join()
    offer = sender.asked(SendModel).offer
    assert (offer.epoch, offer.round, offer.digest) == (1, 0, "w0")

    receiver.tell(ModelArrived(2.0, 0, offer, 2.0))
    assert receiver.asked(Store).copy == Copy("w0", 0, 1)
    receiver.stored(at=2.5)
    assert receiver.commands == (Acknowledge(0, offer.ticket),)
    assert isinstance(receiver.state.phase, Following)

    sender.tell(Acknowledged(2.5, offer.ticket))
    phase = sender.state.phase
    assert isinstance(phase, Swapping)
    assert phase.change == HandOver(1, 0, "w0", 1)
    sender.swap(at=2.5)
    assert isinstance(sender.state.phase, Following)
    assert sender.record.holder == 1
    assert sender.record.safe.copies == (0, 1, 2)

    receiver.tell(RecordSeen(2.5, sender.register.read()))
    train = receiver.asked(Train)
    assert (train.parent, train.round, train.assignment.decision.samples) == ("w0", 1, (3, 4))
    receiver.trained("w1", at=12.5)
    assert receiver.asked(Store).copy == Copy("w1", 1, 1)
    receiver.stored(at=13.0)
    phase = receiver.state.phase
    assert isinstance(phase, Swapping)
    assert phase.change == Commit(1, 0, "w0", "w1", (3, 4), 13.0, 13.0), "12 s of work, and 1 s of disks"
    receiver.swap(at=13.0)

    closed = receiver.asked(CloseRound)
    assert (closed.outcome.node, closed.outcome.compute_seconds, closed.outcome.transfer_seconds) == (1, 10.0, 2.0)
    assert closed.record.ledger == Ledger((3, 4), 13.0, 1)
    assert receiver.record.weights.copies == (1,)
    assert receiver.asked(AskLoads).round == 2


def test_a_skipped_round_waits_and_is_committed_with_the_same_weights() -> None:
    node = holder().hear(0, 1, 2).decide(None)
    assert node.commands == (Wake(node.ticket, 1.0),)
    node.tell(Woke(1.0, node.ticket)).swap(at=1.0)
    assert (node.record.weights.digest, node.record.weights.copies) == ("w0", (0, 1, 2))
    assert node.record.ledger == Ledger((0, 0), 1.0, 1, skipped=1)
    assert node.asked(CloseRound).outcome.node is None


def test_a_holder_that_trains_itself_sends_nothing() -> None:
    node = holder().hear(0, 1, 2).decide(0)
    assert [type(c) for c in node.commands] == [Train, Wake]
    node.trained("w1", at=10.0).stored(at=10.0).swap(at=10.0)
    assert node.record.ledger == Ledger((3, 4), 10.0, 1)
    assert node.record.holder == 0


def test_a_trained_model_is_named_only_after_it_is_stored() -> None:
    node = holder().hear(0, 1, 2).decide(0).trained("w1", at=10.0)
    assert [type(c) for c in node.commands] == [Store, Wake]
    assert not node.state.has("w1")
    assert node.stored(at=10.0).asked(Swap).record.weights.digest == "w1"
    assert node.state.has("w1")


# Nodes that do not report.


def test_a_node_that_cannot_be_reached_is_not_waited_for() -> None:
    node = holder().hear(0, 2)
    node.tell(LoadMissing(0.5, node.ticket, 1))
    assert node.asked(Decide).loads.reporting == (0, 2)
    assert node.state.absent == {1}


def test_without_any_report_the_deadline_decides_and_not_the_last_node_that_is_missing() -> None:
    node = holder()
    node.tell(*(LoadMissing(0.5, node.ticket, n) for n in range(3)))
    assert isinstance(node.state.phase, Gathering)
    assert node.tell(Woke(2.0, node.ticket)).asked(Decide).loads.reporting == ()


def test_a_round_is_decided_at_the_deadline_without_those_that_did_not_report() -> None:
    node = holder().hear(0, 2)
    loads = node.tell(Woke(2.0, node.ticket)).asked(Decide).loads
    assert loads.reporting == (0, 2)
    assert math.isnan(loads.flops[1])


def _after_a_round_without_node_1() -> Node:
    node = holder().hear(0, 2)
    node.tell(Woke(2.0, node.ticket)).decide(None, at=2.0)
    return node.tell(Woke(3.0, node.ticket)).swap(at=3.0)


def test_an_absent_node_is_asked_again_but_not_waited_for() -> None:
    node = _after_a_round_without_node_1()
    assert node.asked(AskLoads).nodes == (1, 0, 2), "first, or its answer could not count in this round"
    node.hear(0, 2, at=3.0)
    assert isinstance(node.state.phase, Deciding)


def test_an_absent_node_that_reports_in_time_is_a_candidate_and_present_again() -> None:
    node = _after_a_round_without_node_1().hear(0, 1, 2, at=3.0)
    assert node.asked(Decide).loads.reporting == (0, 1, 2)
    assert node.state.absent == frozenset()


def test_a_late_report_makes_a_node_present_again() -> None:
    node = _after_a_round_without_node_1()
    first = node.asked(AskLoads).ticket
    node.hear(0, 2, at=3.0)
    assert node.state.absent == {1}
    node.tell(LoadReported(5.0, first, 1, 1e9, 1e6))
    assert node.state.absent == frozenset()
    node.decide(None, at=5.0)
    node.tell(Woke(6.0, node.ticket)).swap(at=6.0).hear(0, 2, at=6.0)
    assert isinstance(node.state.phase, Gathering)


def test_a_node_that_nobody_answers_decides_at_the_deadline_and_not_before() -> None:
    node = holder()
    node.tell(Woke(2.0, node.ticket))
    assert node.asked(Decide).loads.reporting == ()


# Attempts that fail.


@pytest.mark.parametrize("answer", [SendFailed, Woke])
def test_a_failed_or_overdue_send_decides_the_round_again_without_its_receiver(answer: type) -> None:
    node = holder().hear(0, 1, 2).decide(1)
    sent = node.ticket
    node.tell(ANSWERS[answer](sent))
    assert node.commands[0] == CancelSend(sent, overdue=answer is Woke)
    assert node.asked(AskLoads).nodes == (0, 2)
    assert node.asked(AskLoads).round == 1


@pytest.mark.parametrize("answer", [TrainingFailed, Woke])
def test_a_failed_or_overdue_training_decides_the_round_again_without_its_node(answer: type) -> None:
    node = holder().hear(0, 1, 2).decide(0)
    training = node.ticket
    node.tell(ANSWERS[answer](training))
    assert node.commands[0] == CancelTraining(training, overdue=answer is Woke)
    assert node.asked(AskLoads).nodes == (1, 2)


@pytest.mark.parametrize("answer", [StoreFailed, Woke])
def test_a_failed_or_overdue_store_decides_the_round_again_without_its_node(answer: type) -> None:
    node = holder().hear(0, 1, 2).decide(0).trained("w1", at=10.0)
    node.tell(ANSWERS[answer](node.ticket))
    assert node.asked(AskLoads).nodes == (1, 2)


def test_weights_stored_too_late_are_known_to_be_on_disk_and_go_with_the_next_record() -> None:
    node = holder().hear(0, 1, 2).decide(0).trained("w1", at=10.0)
    store = node.asked(Store)
    node.tell(Woke(100.0, node.ticket), Stored(101.0, store.ticket, store.copy))
    assert node.state.has("w1")
    node.hear(1, 2, at=102.0).decide(None, at=102.0)
    node.tell(Woke(103.0, node.ticket)).swap(at=103.0)
    node.hear(0, 1, 2, at=103.0).decide(None, at=103.0)
    node.tell(Woke(104.0, node.ticket)).swap(at=104.0)
    assert not node.state.has("w1")
    assert node.state.has("w0")


def test_lost_seconds_add_up_over_failed_attempts_and_count_in_the_round() -> None:
    node = holder().hear(0, 1, 2).decide(1)
    node.tell(SendFailed(7.0, node.ticket)).hear(0, 2, at=7.0).decide(2, at=7.0)
    node.tell(SendFailed(10.0, node.ticket)).hear(0, at=10.0).decide(0, at=10.0)
    node.trained("w1", at=20.0).stored(at=20.0).swap(at=20.0)
    assert node.asked(CloseRound).outcome.lost_seconds == 10.0
    assert node.record.ledger.seconds == 20.0


def test_a_node_that_failed_is_a_candidate_again_in_the_next_round() -> None:
    node = holder().hear(0, 1, 2).decide(1)
    node.tell(SendFailed(7.0, node.ticket)).hear(0, 2, at=7.0).decide(0, at=7.0)
    node.trained("w1", at=17.0).stored(at=17.0).swap(at=17.0)
    assert node.asked(AskLoads).nodes == (0, 1, 2)
    assert node.state.setbacks == 0


# Deadlines.


@pytest.mark.parametrize("predicted", [0.5, 40.0, 4000.0])
def test_a_send_is_overdue_only_after_several_times_what_was_predicted(predicted: float) -> None:
    node = holder().hear(0, 1, 2)
    node.tell(Decided(0.0, node.ticket, decision(1, transfer_seconds=predicted)))
    assert node.asked(Wake).seconds == 4.0 * predicted + 5.0


def test_deadlines_double_with_every_setback_up_to_sixteen_times() -> None:
    deadlines = [LIMITS.overdue_after(10.0, setbacks) for setbacks in range(7)]
    assert deadlines == [45.0, 90.0, 180.0, 360.0, 720.0, 720.0, 720.0]


def test_a_training_after_a_setback_has_twice_the_time() -> None:
    node = holder().hear(0, 1, 2).decide(1)
    node.tell(SendFailed(7.0, node.ticket)).hear(0, 2, at=7.0).decide(0, at=7.0)
    assert node.asked(Wake).seconds == 2 * (4.0 * 10.0 + 5.0)


# Pause and resume.


def test_a_paused_run_halts_after_the_round_in_hand() -> None:
    node = holder().hear(0, 1, 2).decide(0)
    set_status(node, "paused")
    assert isinstance(node.state.phase, Training)
    node.trained("w1", at=10.0).stored(at=10.0)
    node.swap(at=10.0)
    assert isinstance(node.state.phase, Halted)
    assert node.asked(CloseRound).record.status == "paused"


@pytest.mark.parametrize("phase", [Gathering, Deciding, Waiting])
def test_a_run_that_is_paused_before_the_model_moves_or_trains_halts_at_once(phase: type) -> None:
    node = set_status(PHASES[phase](), "paused", at=1.0)
    assert isinstance(node.state.phase, Halted)
    set_status(node, "running", at=50.0)
    assert isinstance(node.state.phase, Gathering)
    assert node.state.phase.attempt.lost_seconds == 0.0


def test_a_resumed_run_goes_on_and_does_not_charge_the_pause() -> None:
    node = Node(0, register("paused")).join()
    set_status(node, "running", at=500.0)
    phase = node.state.phase
    assert isinstance(phase, Gathering)
    assert phase.attempt.lost_seconds == 0.0


def test_a_receiver_keeps_its_assignment_over_a_pause() -> None:
    sender = holder().hear(0, 1, 2).decide(1)
    receiver = Node(1, sender.register).join()
    offer = sender.asked(SendModel).offer
    receiver.tell(ModelArrived(2.0, 0, offer, 2.0)).stored(at=2.0)
    set_status(sender, "paused", at=2.0)
    sender.tell(Acknowledged(2.0, offer.ticket)).swap(at=2.0)
    receiver.tell(RecordSeen(2.0, sender.register.read()))
    assert isinstance(receiver.state.phase, Halted)
    set_status(receiver, "running", at=9.0)
    assert receiver.asked(Train).assignment == offer.assignment


# What passes between the steps.


def test_overhead_is_all_that_is_neither_training_nor_transfer_nor_waiting_wherever_it_passes() -> None:
    node = holder().hear(0, 1, 2, at=0.5).decide(0, at=1.0).trained("w1", at=12.0).stored(at=13.0).swap(at=13.5)
    assert node.asked(CloseRound).outcome.overhead_seconds == 3.0, "until the commit; training took 10 s"
    node.hear(0, 1, 2, at=14.0).decide(1, at=14.5)
    offer = node.asked(SendModel).offer
    assert offer.assignment is not None
    assert offer.assignment.overhead_seconds == 1.5, "the swap of the last commit among it"
    receiver = Node(1, node.register).join(at=13.5)
    receiver.tell(ModelArrived(116.5, 0, offer, 2.0)).stored(at=117.0)  # by a clock that goes 100 s fast
    node.tell(Acknowledged(17.5, offer.ticket)).swap(at=17.75)
    receiver.tell(RecordSeen(118.0, node.register.read())).trained("w2", at=128.5).stored(at=129.0).swap(at=129.25)
    outcome = receiver.asked(CloseRound).outcome
    assert outcome.overhead_seconds == 1.5 + (129.0 - 116.5 - 10.0)
    assert outcome.seconds == 10.0 + 2.0 + outcome.overhead_seconds
    assert receiver.record.ledger.seconds == 13.0 + outcome.seconds


def test_a_wait_that_lasts_longer_than_h_is_overhead() -> None:
    node = holder().hear(0, 1, 2).decide(None)
    outcome = node.tell(Woke(1.25, node.ticket)).swap(at=1.25).asked(CloseRound).outcome
    assert (outcome.idle_seconds, outcome.overhead_seconds) == (1.0, 0.25)


def test_overhead_of_an_attempt_that_fails_is_lost() -> None:
    sender = holder().hear(0, 1, 2).decide(1, at=3.0)
    offer = sender.asked(SendModel).offer
    receiver = Node(1, sender.register).join()
    receiver.tell(ModelArrived(5.0, 0, offer, 2.0)).stored(at=5.0)
    sender.tell(Acknowledged(5.0, offer.ticket)).swap(at=5.0)
    receiver.tell(RecordSeen(6.0, sender.register.read())).tell(TrainingFailed(9.0, receiver.ticket))
    phase = receiver.state.phase
    assert isinstance(phase, Gathering)
    assert phase.attempt.lost_seconds == 9.0, "all since the last commit"


# Weights that are not acceptable.


def test_rejected_weights_are_not_committed_and_the_round_is_decided_again_without_their_site() -> None:
    node = holder().hear(0, 1, 2).decide(0)
    node.tell(Rejected(10.0, node.ticket, "bad", 10.0))
    assert isinstance(node.state.phase, Gathering)
    assert node.state.phase.attempt.excluded == {0}
    assert node.record.weights.digest == "w0"
    assert not node.state.has("bad")
    offer = node.hear(1, 2, at=10.0).decide(1, at=10.0).asked(SendModel).offer
    assert offer.assignment is not None
    assert offer.assignment.rejected == (0,), "so that the round's row can say so"
    assert offer.assignment.lost_seconds == 10.0


# A transfer that becomes slow.


def candidate(node: int, seconds: float, score: float, feasible: bool = True) -> Candidate:
    return Candidate(node, 5, 10.0, seconds - 10.0, score, 0.0, 1.0, feasible)


def weighed(*candidates: Candidate) -> Node:
    """Node 0, which sends to node 1 after a policy has weighed these; the round takes 12 s there."""
    node = holder().hear(0, 1, 2)
    return node.tell(
        Decided(0.0, node.ticket, replace(decision(1), candidates=(candidate(1, 12.0, 9.0), *candidates)))
    )


def test_a_transfer_is_given_up_where_the_next_best_node_would_be_done_sooner() -> None:
    node = weighed(candidate(0, 30.0, 8.0), candidate(2, 13.0, 7.0))
    node.tell(SendSlowed(2.0, node.ticket, 34.0))
    assert isinstance(node.state.phase, Sending), "44 s here, and 30 s at the node that the policy would take next"
    node.tell(SendSlowed(3.0, node.ticket, 36.0))
    cancel = node.commands[0]
    assert isinstance(cancel, CancelSend)
    assert cancel.reason == "at this pace the round takes 46 s more, and elsewhere 30 s"
    assert isinstance(node.state.phase, Gathering)
    assert node.state.phase.attempt.slow == (SlowHop(1, 1e6 / 36.0, decision(1).transfer_seconds, cancel.reason),)
    assert node.state.phase.attempt.lost_seconds == 3.0


def slow() -> Node:
    """Node 0 alone has the weights, and gave a hop to node 1 up for its pace; all nodes have reported again."""
    node = holder()
    now = node.register.read()
    fewer = node.register.swap(now.revision, replace(now.record, weights=Weights("w0", (0,))))
    assert fewer is not None
    node.tell(RecordSeen(0.0, fewer)).hear(0, 1, 2)
    weighed_here = replace(decision(1), candidates=(candidate(1, 12.0, 9.0), candidate(2, 13.0, 7.0)))
    node.tell(Decided(0.0, node.ticket, weighed_here))
    node.tell(SendSlowed(3.0, node.ticket, 36.0))
    assert node.asked(AskLoads).nodes == (0, 1, 2), "its labels stay in the balance"
    return node.hear(0, 1, 2, at=3.0)


def test_the_node_at_the_end_of_a_slow_link_may_be_chosen_again_at_the_pace_that_was_seen() -> None:
    node = slow()
    assert node.asked(Decide).loads.bandwidth == (math.inf, 1e6 / 36.0, 1e6)
    assignment = node.decide(1, at=3.0).asked(SendModel).offer.assignment
    assert assignment is not None
    assert assignment.loads.bandwidth == (math.inf, 1e6 / 36.0, 1e6), "the record has what was decided on"
    assert assignment.lost_seconds == 3.0


def test_a_policy_that_weighs_no_nodes_decides_again_without_the_one_at_the_end_of_a_slow_link() -> None:
    node = weighed()
    node.tell(SendSlowed(3.0, node.ticket, 3600.0))
    phase = node.state.phase
    assert isinstance(phase, Gathering)
    assert (phase.attempt.slow, phase.attempt.excluded) == ((), frozenset({1}))


def test_a_hop_that_is_chosen_again_at_a_slow_pace_is_overdue_as_soon_as_at_its_usual_pace() -> None:
    node = slow()
    usual = decision(1).transfer_seconds
    node.tell(Decided(3.0, node.ticket, replace(decision(1), transfer_seconds=36.0)))
    assert node.asked(Wake).seconds == node.state.limits.overdue_after(usual, setbacks=1)


def test_a_decision_that_is_made_again_says_why() -> None:
    assignment = slow().decide(2, at=3.0).asked(SendModel).offer.assignment
    assert assignment is not None
    assert assignment.decision.reason == (
        "It is there; decided again, as the hop to node 1 was given up: at this pace the round takes 46 s more, and"
        " elsewhere 13 s."
    )


def test_a_node_that_fails_after_its_link_was_slow_is_left_out() -> None:
    node = slow().decide(1, at=3.0)
    node.tell(SendFailed(4.0, node.ticket))
    phase = node.state.phase
    assert isinstance(phase, Gathering)
    assert phase.attempt.excluded == {1}
    assert phase.attempt.slow == ()
    assert node.asked(AskLoads).nodes == (0, 2)


def test_a_slow_link_is_still_known_after_another_node_has_failed() -> None:
    node = slow().decide(2, at=3.0)
    node.tell(SendFailed(4.0, node.ticket))
    assert node.asked(AskLoads).nodes == (0, 1)
    assert node.hear(0, 1, at=4.0).asked(Decide).loads.bandwidth[:2] == (math.inf, 1e6 / 36.0)


def test_a_transfer_is_waited_for_where_no_other_node_may_train() -> None:
    alone = holder().hear(1)
    alone.tell(Woke(2.0, alone.ticket)).decide(1, at=2.0)
    alone.tell(SendSlowed(4.0, alone.ticket, 1e6))
    assert isinstance(alone.state.phase, Sending)


def test_where_the_policy_weighed_one_node_alone_the_same_work_elsewhere_counts() -> None:
    node = weighed()
    # 10 s of training at node 0, which has the model.
    node.tell(SendSlowed(2.0, node.ticket, 4.0))
    assert isinstance(node.state.phase, Sending)
    node.tell(SendSlowed(3.0, node.ticket, 6.0))
    assert isinstance(node.state.phase, Gathering)


def test_where_the_policy_weighs_no_nodes_elsewhere_is_not_the_quickest_node_alone() -> None:
    node = holder()
    now = node.register.read()
    fewer = node.register.swap(now.revision, replace(now.record, weights=Weights("w0", (0,))))
    assert fewer is not None
    node.tell(RecordSeen(0.0, fewer)).hear(0, 1)
    node.tell(LoadReported(0.0, node.ticket, 2, 1e9, 1e4))
    node.tell(Decided(0.0, node.ticket, replace(decision(1), candidates=(candidate(1, 12.0, 9.0),))))
    node.tell(SendSlowed(2.0, node.ticket, 40.0))
    assert isinstance(node.state.phase, Sending), "10 s at node 0, but 110 s at node 2, which may be drawn as well"
    node.tell(SendSlowed(3.0, node.ticket, 90.0))
    cancel = node.commands[0]
    assert isinstance(cancel, CancelSend)
    assert cancel.reason == "at this pace the round takes 100 s more, and elsewhere 60 s"


def test_where_the_policy_weighs_no_nodes_a_node_that_has_the_weights_costs_no_transfer() -> None:
    node = holder().hear(0, 1)
    node.tell(LoadReported(0.0, node.ticket, 2, 1e9, 1e4))
    node.tell(Decided(0.0, node.ticket, replace(decision(1), candidates=(candidate(1, 12.0, 9.0),))))
    node.tell(SendSlowed(2.0, node.ticket, 6.0))
    cancel = node.commands[0]
    assert isinstance(cancel, CancelSend)
    assert cancel.reason == "at this pace the round takes 16 s more, and elsewhere 10 s"

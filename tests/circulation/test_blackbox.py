"""The last events of a node that broke can be kept in a file and played again, to the same error."""

from __future__ import annotations

import pytest

from tramfl.circulation.blackbox import Recorder, decode, encode, replayed
from tramfl.circulation.events import Decided, Event
from tramfl.circulation.machine import IllegalEvent, advance
from tramfl.circulation.phases import State
from tramfl.notation import BadInput, Decision
from tramfl.simulation import world
from tramfl.simulation.fault_schedules import schedule_of
from tramfl.simulation.faults import Trial


def recorded(seed: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recorder, State]]:
    """What each life of the nodes of a fault schedule kept, and its last state."""
    recorders: dict[tuple[int, int], Recorder] = {}
    last: dict[tuple[int, int], State] = {}

    def recording(state: State, event: Event) -> object:
        life = (state.me, state.ticket >> 32)
        recorders.setdefault(life, Recorder(kept)).note(state, event)
        after = advance(state, event)
        last[life] = after[0]
        return after

    monkeypatch.setattr(world, "advance", recording)
    Trial(schedule_of(seed)).play()
    return [(recorders[life], last[life]) for life in recorders]


@pytest.mark.parametrize("seed", range(8))
def test_what_nodes_went_through_comes_back_from_a_file_and_leads_to_the_same_states(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for recorder, last in recorded(seed, 100, monkeypatch):
        tape = recorder.tape("alpha", "run", "nothing")
        read = decode(encode(tape), "a file")
        assert len(read.events) <= 100
        assert read.before is not None
        state = read.before
        for event in read.events:
            state, _ = advance(state, event)
        # Reports may hold NaN, which differs from itself: compare what is shown.
        assert repr(state) == repr(last)


def test_an_impossible_event_breaks_the_replay_where_it_broke_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, state = recorded(0, 20, monkeypatch)[0]
    impossible = Decided(999.0, state.ticket + 1, Decision("by hand", None, (0,) * 4, 0.0, 0.0, 1.0, "Nobody."))
    recorder.note(state, impossible)
    with pytest.raises(IllegalEvent) as broke:
        advance(state, impossible)
    tape = decode(encode(recorder.tape("alpha", "run", f"IllegalEvent: {broke.value}")), "a file")
    lines = list(replayed(tape))
    assert lines[0] == "site alpha, run run: 20 events before it broke with"
    assert lines[-1].endswith(f"the machine breaks here: IllegalEvent: {broke.value}")
    assert "Decided(" in lines[-2]
    assert lines[-2].startswith("  20 ")


def test_a_site_that_broke_outside_the_machine_is_said_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, _ = recorded(0, 5, monkeypatch)[0]
    *_, last = replayed(recorder.tape("alpha", "run", "OSError: no such disk"))
    assert last.startswith("the machine itself did not break")
    assert next(replayed(Recorder().tape("alpha", "run", "OSError: too early"))).startswith("site alpha")


def test_a_file_that_is_no_black_box_is_rejected_in_one_sentence() -> None:
    for content in (b"", b"not msgpack", b"\x91" * 5000, encode(Recorder().tape("a", "r", "x"))[:-1]):
        with pytest.raises(BadInput, match=r"^a file is no black box of a site: .*\.$"):
            decode(content, "a file")

"""A site's log stays small, whatever its peers do."""

from __future__ import annotations

import io
import json
from typing import Any

from tramfl.runtime.journal import BURST, BURST_SECONDS, MOST_TEXT, Journal


class Written:
    """A journal in memory, at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self._out = io.BytesIO()
        self.log = Journal("a", self._out, lambda: self.now)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.getvalue().splitlines()]


def test_what_a_peer_says_is_cut() -> None:
    written = Written()
    written.log("load-ignored", peer="b", reason="it holds " + "7, " * 100_000)
    written.log("started", address="here", incarnation=1, held=tuple(range(28_000)))
    first, second = written.lines()
    assert len(first["reason"]) < MOST_TEXT + 50
    assert first["reason"].endswith("more characters)")
    assert len(second["held"]) == 101


def test_a_peer_fills_no_log_and_another_peer_is_still_heard() -> None:
    written = Written()
    for number in range(10_000):
        written.log("refused", peer="b", address="x", what="Load", reason=f"no {number}")
    written.log("refused", peer="c", address="x", what="Load", reason="no")
    assert len(written.lines()) == BURST + 1
    assert written.log.counts["refused"] == 10_001
    written.now += BURST_SECONDS
    written.log("refused", peer="b", address="x", what="Load", reason="never")
    assert written.lines()[-1]["reason"] == f"never ({10_000 - BURST} more such lines were left out)"


def test_events_that_are_about_no_peer_are_all_written() -> None:
    written = Written()
    for _ in range(100):
        written.log("training-failed", reason="no luck")
    assert len(written.lines()) == 100


def test_a_line_that_repeats_is_written_once_a_minute_and_counted_each_time() -> None:
    out, now = io.BytesIO(), [1000.0]
    log = Journal("a", out, lambda: now[0])
    for second in range(121):
        now[0] = 1000.0 + second
        log("refused", peer="b", what="Load", reason="it is drained", address=f"ipv4:127.0.0.1:{second}")
    log("refused", peer="c", what="Load", reason="it is drained")
    log("committed", node="a", samples=1, predicted_seconds=1.0, actual_seconds=1.0, overhead_seconds=0.1, reason="r")
    log("committed", node="a", samples=1, predicted_seconds=1.0, actual_seconds=1.0, overhead_seconds=0.1, reason="r")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["event"], line.get("peer")) for line in lines] == [
        *([("refused", "b")] * 3),
        ("refused", "c"),
        ("committed", None),
        ("committed", None),
    ]
    assert log.counts["refused"] == 122

"""Kept runs of barrier methods under another clock, without training again.

    python -m benchmarks.retimed FILE... --into PLACE [--method NAME] [--set KEY=VALUE...]

Where every node keeps a model, what a full barrier method computes follows from the seed and its settings alone: the
loads decide when a round ends, and nothing else. So a run in time slots, or with a server beside the nodes, has the
tests of the run that was trained, at other times and with other traffic. FILE is a run that `benchmarks.results` has
kept. Loads, budget and the place of the server may change. The script plays the run twice without training, as it was
and with the changes, and compares every training, every sum of models and every model tested. Where one differs (a
round goes on without its slowest nodes, or links choose the partners), it refuses, as it does where the run with the
changes would go on for longer than the one that was kept. `tests` in the first line of the new file names the file
that the tests are from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs

from benchmarks.results import SUFFIX, Line, kept, models_of, read_parts
from tramfl.cli.options import changed
from tramfl.config import Budget, Scenario, as_table
from tramfl.exchange.work import Work
from tramfl.methods import method_named, with_method
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.record import Resolved, Row, Scores, Tally, resolved_from, settings_to_show, write_atomically
from tramfl.reporting.runs import Run
from tramfl.simulation.arena import Arena
from tramfl.simulation.scenarios import leaves
from tramfl.simulation.setting import scheduling_only

MAY_CHANGE = ("name", "method", "exchange.server", "loads.", "budget.")
"""Keys, or beginnings of keys, that say when things happen and not what is computed."""
NOT_TESTED = Scores(None, None, None, UNSET)


@dataclass
class Recorder:
    """Takes the place of a learner: notes what is to be computed and tested, and does nothing."""

    outputs: int
    asked: list[Work | tuple[Digest, ...]] = field(default_factory=list)
    """Work, and the models of every test."""

    def do(self, work: Sequence[Work]) -> bool:
        """Note the work of a round."""
        self.asked += work
        return False

    def score(self, models: Sequence[tuple[Digest, NodeId]], targets: Sequence[float]) -> list[Scores]:
        """Note which models are tested."""
        self.asked.append(tuple(digest for digest, _ in models))
        return [NOT_TESTED for _ in models]

    def discard(self, digest: Digest) -> None:
        """Nothing is there to discard."""

    def close(self) -> None:
        """Nothing is open."""

    def delivered(self, digest: Digest, about: Mapping[str, str] | None = None) -> bytes:
        """No model."""
        return b""

    def saved(self, digests: Sequence[Digest], about: Mapping[str, str]) -> list[bytes | memoryview]:
        """No models."""
        return []


def retimed(file: Path, method: str | None = None, sets: Sequence[str] = ()) -> tuple[str, bytes]:
    """A kept run with changed settings: where it belongs in a folder of kept runs, and its content."""
    head, lines = read_parts(file)
    before, resolved = settings_to_show(head.config, str(file)), resolved_from(head.config, str(file))
    after = before if method is None else with_method(before, method_named(method))
    after = changed(after, str(file), list(sets))
    if not before.keeps_models or not after.keeps_models:
        raise BadInput(f"{file}: one model travels, so the loads decide who trains; play the run with its new clock.")
    _check_keys(before, after, file)
    rounds = lines[-1].round
    (_, one), (rows, other) = (_planned(scenario, resolved, rounds, file) for scenario in (before, after))
    if one != other:
        raise BadInput(
            f"{file}: with these settings the nodes would train or average other models than in the run that was"
            " kept; play the run again."
        )
    run = _tested(file, after, resolved, rows, lines, head.config)
    tests = "/".join(file.parts[-3:])
    config = {**as_table(after), "resolved": head.config["resolved"]}
    return f"{after.name}/{after.method_name}-{after.seed}{SUFFIX}", kept(run, config, after.method_name, tests)


def _check_keys(before: Scenario, after: Scenario, file: Path) -> None:
    one, other = dict(leaves(as_table(before))), dict(leaves(as_table(after)))
    for key in sorted({**one, **other}):
        if one.get(key) != other.get(key) and not key.startswith(MAY_CHANGE):
            raise BadInput(f"{file}: `{key}` changes what is computed; play the run again.")


def _planned(
    scenario: Scenario, resolved: Resolved, rounds: int, file: Path
) -> tuple[list[Row], list[Work | tuple[Digest, ...]]]:
    """The rows of a run without its tests, and all that its learner would be asked for."""
    setting = scheduling_only(scenario)
    if setting.held.tolist() != [list(node) for node in resolved.held]:
        raise BadInput(f"{file}: nodes hold other samples than this version would give them; play the run again.")
    recorder = Recorder(len(setting.labels))
    endless = structs.replace(scenario, budget=Budget(targets=(), rounds=rounds))
    rows = list(Arena(endless, replace(setting, peers=recorder)).rounds())
    return rows, recorder.asked


def _tested(
    file: Path,
    scenario: Scenario,
    resolved: Resolved,
    rows: Sequence[Row],
    lines: Sequence[Line],
    config: dict[str, Any],
) -> Run:
    """The run with the tests of the kept one, up to where its budget ends."""
    tests = {line.round: line for line in lines}
    tally, found = Tally.of(scenario.budget, len(rows[0].used)), list[Row]()
    for row in rows:
        test = tests.get(row.round)
        models = UNSET if test is None else models_of(test, config)
        scored = structs.replace(row, test_accuracy=test and test.accuracy, test_loss=test and test.loss)
        found.append(structs.replace(scored, models=models))
        tally = tally.after(found[-1])
        if tally.milestones.is_over(scenario.budget, tally.ledger):
            cost = scheduling_only(scenario).cost
            return Run(file, scenario, resolved, tuple(found), tally.summary(scenario, cost, finished=True))
    raise BadInput(
        f"{file}: with these settings the run goes on after its {len(rows)} rounds; play it for longer, or give a"
        " smaller budget."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write every file's run under its new settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--into", type=Path, required=True, metavar="PLACE")
    parser.add_argument("--method", help="the method whose run this is, where it is another")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of every run")
    chosen = parser.parse_args(arguments)
    try:
        for file in chosen.files:
            name, content = retimed(file, chosen.method, chosen.set)
            place = chosen.into / name
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, content)
            print(place)
    except BadInput as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""The runs behind the tables of docs/reproduction.md and docs/methods.md, kept in the repository as small text files.

    python -m benchmarks.results keep FOLDER... [--into PLACE]       reduce finished runs to one file each
    python -m benchmarks.results table-one [PLACE...]                what `tramfl reproduce` prints of them
    python -m benchmarks.results race [PLACE...] [--methods a,b] [--seeds 3]     what it prints with --methods a,b
    python -m benchmarks.results figures OUT [PLACE...] [--methods a,b] [--seeds 3]     the race's figures, as SVG

Runs take hours of computing, and their folders are large. A kept run has what the tables are made of: its settings as
config.toml has them, its summary, and of every test, and of the last round, one line

    [round, node or nodes that trained, virtual seconds, bits sent, samples used, test accuracy, test loss,
     accuracy of the mean of the nodes' models]

Seconds, bits and samples are of the run up to that round. The loss has four digits, or all where the targets are of
it. The tables are those of `tramfl.reporting`, made from these files instead of from folders. PLACE is
`benchmarks/results` unless given; a folder in it, such as `benchmarks/results/slots`, keeps runs apart whose settings
differ. Runs of a method with settings of its own are kept beside the others with `keep --variant tuned`; tables call
them `load-aware, tuned`. Settings that are a path on the machine that played a run are kept as the file's name alone.
Runs that `benchmarks.retimed` made say in `tests` from which kept run their tests are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType, structs

from tramfl.config import ACCURACY, LOSS
from tramfl.notation import BadInput
from tramfl.record import (
    ModelScores,
    Row,
    RowDecision,
    RowLoads,
    RunFolder,
    Summary,
    read_config,
    resolved_from,
    runs_inside,
    settings_to_show,
    write_atomically,
)
from tramfl.reporting.figures import write_races
from tramfl.reporting.race import race_report
from tramfl.reporting.reproduction import reproduction_tables
from tramfl.reporting.runs import Run, load_run
from tramfl.reporting.several import sent_bits
from tramfl.simulation.grid import seeds_from
from tramfl.simulation.scenarios import scenario_names

PLACE = Path(__file__).with_suffix("")
SUFFIX = ".jsonl"


class Kept(msgspec.Struct, frozen=True):
    """The first line of a kept run."""

    config: dict[str, Any]
    summary: Summary
    tests: str | UnsetType = UNSET
    """The kept run whose tests these are, where only the clock or the links are others."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One test of a kept run, or its last round."""

    round: int
    nodes: int | tuple[int, ...] | None
    """Who trained: one node, several where every node keeps a model, null where the round was skipped."""
    seconds: float
    bits: float
    samples: int
    accuracy: float | None
    loss: float | None
    mean_model: float | None = None
    """Where the nodes' models differ: the accuracy, or loss, of their mean. `accuracy` is then the nodes' mean."""


# Keeping.


def keep(folders: Iterable[Path], place: Path, *, variant: str | None = None, over: bool = False) -> list[Path]:
    """Reduce every finished run below `folders` to a file below `place`; the files that were written.

    A variant is a word that files and tables add to the method's name.
    """
    found = [run for folder in folders for run in _finished_inside(folder)]
    files = []
    for folder in found:
        run = load_run(folder.path)
        method = run.policy if variant is None else f"{run.policy}, {variant}"
        file = place / run.scenario / f"{method.replace(', ', '-').replace(':', '.')}-{run.seed}{SUFFIX}"
        content = kept(run, _without_paths(read_config(folder.config)), method)
        if file.exists() and not over and _settings_in(file.read_bytes()) != _settings_in(content):
            raise BadInput(f"{file} is of a run with other settings; give another place with --into, or --over.")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
        files.append(file)
    return files


def _finished_inside(folder: Path) -> list[RunFolder]:
    named = RunFolder(folder)
    inside = [named] if named.has_record else runs_inside(folder)
    ended = [run for run in inside if (summary := run.summary()) and summary.status in ("finished", "stopped")]
    if not ended:
        raise BadInput(f"{folder} has no finished run: name a folder that `tramfl reproduce` or `compare` has left.")
    return ended


def kept(run: Run, config: dict[str, Any], name: str, tests: str | UnsetType = UNSET) -> bytes:
    """What is kept of a run under its name in a table: the same bytes for the same run."""
    metric = run.measure.metric
    if metric not in (ACCURACY, LOSS):
        raise BadInput(f"{run.folder}: its targets are of {metric}; only tests' accuracy and loss are kept.")
    parts: list[Kept | Line] = [Kept(config, structs.replace(run.summary, policy=name), tests)]
    for row, bits in zip(run.rows, sent_bits(run).tolist(), strict=True):
        if row.is_tested or row is run.rows[-1]:
            loss = row.test_loss if metric == LOSS or row.test_loss is None else float(f"{row.test_loss:.4g}")
            nodes = row.node if isinstance(row.trained, UnsetType) else tuple(t.node for t in row.trained)
            mean = None if row.models is UNSET or row.models.headline == "consensus" else row.models.consensus
            used = sum(row.used)
            parts.append(Line(row.round, nodes, row.total_seconds, bits, used, row.test_accuracy, loss, mean))
    return b"".join(msgspec.json.encode(part) + b"\n" for part in parts)


def _without_paths(value: Any) -> Any:
    """Settings in which a file of the machine that played the run has its name alone."""
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _settings_in(content: bytes) -> dict[str, Any]:
    config = msgspec.json.decode(content.partition(b"\n")[0], type=Kept).config
    return {key: value for key, value in config.items() if key != "resolved"}


# Reading back.


def kept_runs(places: Iterable[Path]) -> list[Run]:
    """The kept runs below some places, scenarios in the order of `tramfl reproduce`."""
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob(f"*{SUFFIX}")))]
    runs = [read_back(file) for file in files]
    order = {name: number for number, name in enumerate(scenario_names())}
    return sorted((run for run in runs if run.scenario in order), key=lambda run: (order[run.scenario], run.seed))


def read_back(file: Path) -> Run:
    """A kept run, as far as tables need it: labels are counted together, and loads and candidates are not there."""
    head, lines = read_parts(file)
    settings, resolved = settings_to_show(head.config, str(file)), resolved_from(head.config, str(file))
    return Run(file, settings, resolved, tuple(_rows(head, lines)), head.summary)


def read_parts(file: Path) -> tuple[Kept, list[Line]]:
    """The lines of a kept run."""
    try:
        first, *lines = file.read_bytes().splitlines()
        return msgspec.json.decode(first, type=Kept), [msgspec.json.decode(line, type=Line) for line in lines]
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} is not a kept run: {error}.") from None


def _rows(head: Kept, lines: Sequence[Line]) -> Iterator[Row]:
    none = (None,) * max(1, len(head.config.get("resolved", {}).get("held", ())))
    # A sum of these differences gives the bits of each line again: what is lost in one is below their last digit.
    sent = np.diff([line.bits for line in lines], prepend=0.0).tolist()
    trained = np.diff([line.samples for line in lines], prepend=0).tolist()
    for line, bits, samples in zip(lines, sent, trained, strict=True):
        nodes = line.nodes if isinstance(line.nodes, tuple) else (line.nodes,)
        yield Row(
            round=line.round,
            holder=nodes[0] or 0,
            node=nodes[0],
            samples=(samples,),
            loads=RowLoads(none, none),
            compute_seconds=0.0,
            transfer_seconds=0.0,
            idle_seconds=0.0,
            total_seconds=line.seconds,
            used=(line.samples,),
            label_variance=0.0,
            decision=RowDecision(head.summary.policy, "", 0.0, ()),
            test_accuracy=line.accuracy,
            test_loss=line.loss,
            models=models_of(line, head.config),
            sent_bits=bits,
        )


def models_of(line: Line, config: dict[str, Any]) -> ModelScores | UnsetType:
    """What a line says of several models."""
    if line.mean_model is None:
        return UNSET
    of_loss = config.get("budget", {}).get("metric") == LOSS
    return ModelScores(headline="nodes", mean=line.loss if of_loss else line.accuracy, consensus=line.mean_model)


def chosen_runs(runs: Iterable[Run], methods: str | None, seeds: str | None) -> list[Run]:
    """The runs of load-aware and of these methods, or all; those of these seeds, or all."""
    names = None if methods is None else {"load-aware", *(name.strip() for name in methods.split(","))}
    numbers = None if seeds is None else set(seeds_from(seeds))
    return [run for run in runs if (not names or run.policy in names) and (not numbers or run.seed in numbers)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep runs, or print the tables of those that are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="reduce finished runs to one file each")
    keeping.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    keeping.add_argument("--into", type=Path, default=PLACE, metavar="PLACE")
    keeping.add_argument("--variant", metavar="WORD", help="what to add to the methods' names")
    keeping.add_argument("--over", action="store_true", help="replace kept runs with other settings")
    for name, what in (("table-one", "the paper's Table I"), ("race", "methods side by side"), ("figures", "races")):
        showing = commands.add_parser(name, help=f"{'draw' if name == 'figures' else 'print'} {what}, from kept runs")
        if name == "figures":
            showing.add_argument("out", type=Path, metavar="OUT")
        showing.add_argument("places", type=Path, nargs="*", default=[PLACE], metavar="PLACE")
        if name != "table-one":
            showing.add_argument("--methods", help="only load-aware and these")
            showing.add_argument("--seeds", help="only these, written as 3, 0-2 or 0,4")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "keep":
            files = keep(chosen.folders, chosen.into, variant=chosen.variant, over=chosen.over)
            print(
                f"Kept {len(files)} runs below {chosen.into}, {sum(f.stat().st_size for f in files) / 1000:.0f} kB."
            )
            return
        runs = kept_runs(chosen.places)
        if chosen.command != "table-one":
            runs = chosen_runs(runs, chosen.methods, chosen.seeds)
        if not runs:
            raise BadInput(f"no kept run below {', '.join(map(str, chosen.places))}.")
        if chosen.command == "figures":
            drawn = write_races(runs, chosen.out)
            print(f"Drew {', '.join(path.name for path in drawn)} into {chosen.out}.")
        else:
            print((reproduction_tables if chosen.command == "table-one" else race_report)(runs))
    except BadInput as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

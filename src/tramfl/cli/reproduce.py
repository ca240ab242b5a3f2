"""`tramfl reproduce`: the paper's Table I and figures, beside the paper's own numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from tramfl.cli.compare import JobsOption, RayOption, play_grid
from tramfl.cli.options import DataDirOption, QuietOption, SetOption, TestEveryOption, changed
from tramfl.cli.report import write_report
from tramfl.config import Scenario
from tramfl.methods import method_named, method_names, with_method
from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.reporting import load_runs, write_figures
from tramfl.reporting.paper import POLICIES, TARGETS
from tramfl.reporting.race import race_report
from tramfl.reporting.reproduction import reproduction_tables
from tramfl.reporting.runs import Run
from tramfl.reporting.summary import OURS
from tramfl.simulation.grid import cells
from tramfl.simulation.play import Request
from tramfl.simulation.reference import own_targets, reference_run, with_targets
from tramfl.simulation.scenarios import scenario_named, with_tests_every

QUICK_SAMPLES = 20_000
ALL = "all"
HELD_FOR = 3
"""Tests whose mean holds a target."""


class PaperDataset(StrEnum):
    """Data sets of the paper, and a small one that methods can be raced on."""

    mnist = "mnist"
    cifar10 = "cifar10"
    digits = "digits"


class PaperLayout(StrEnum):
    """Scenarios of the paper."""

    three = "3"
    five = "5"
    ten = "10"
    uneven = "5-uneven"


def reproduce(
    dataset: Annotated[list[PaperDataset] | None, typer.Option(help="Only this data set.")] = None,
    scenario: Annotated[list[PaperLayout] | None, typer.Option(help="Only this layout of nodes.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of every run (default: 2).")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="MNIST, 5-uneven, one seed: a look in a few minutes.")
    ] = False,
    weights: Annotated[
        Path | None, typer.Option(help="Pre-trained ResNet-18 for cifar10: .safetensors or torchvision's .pth.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Race these against load-aware in place of the paper's policies, e.g. express,gossip; all: every"
            " method but the other policies."
        ),
    ] = None,
    test_every: TestEveryOption = None,
    samples: Annotated[int | None, typer.Option(min=1, help="End a run after this many samples.")] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("runs/reproduction"),
    jobs: JobsOption = None,
    ray: RayOption = None,
    data_dir: DataDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Rebuild the paper's Table I and its figures beside the paper's own numbers; goes on where it stopped.

    With --methods: the time of each method to each target over load-aware's, first reached and held, and the floor;
    then time and traffic to each target, and accuracy at equal time and traffic.
    """
    if quick:
        dataset = dataset or [PaperDataset.mnist]
        scenario = scenario or [PaperLayout.uneven]
        seeds, samples = seeds or 1, samples or QUICK_SAMPLES
    requests: list[Request] = []
    for name in dataset or [PaperDataset.mnist, PaperDataset.cifar10]:
        if name is PaperDataset.digits and methods is None:
            raise BadInput("the paper has no figures for digits: name methods to race with --methods.")
        if name is PaperDataset.cifar10 and weights is None:
            raise BadInput("cifar10 starts from pre-trained weights: give them with --weights, or --dataset mnist.")
        base = [_scenario(name, layout, weights, samples, set_) for layout in scenario or list(PaperLayout)]
        template = Request(scenario=base[0], data_dir=data_dir)
        if name is PaperDataset.cifar10:
            own = _own_targets(base[0], template, out, quiet)
            base = [with_targets(scenario, own) for scenario in base]
        raced = [with_tests_every(scenario, test_every) for scenario in _raced(base, methods)]
        requests += cells(raced, range(seeds or 2), out, template)
    play_grid(requests, jobs, ray, quiet)
    folders = [request.out for request in requests if request.out is not None]
    _conclude(folders, out, quiet, reproduction_tables if methods is None else race_report)


def _raced(base: Sequence[Scenario], methods: str | None) -> list[Scenario]:
    """Every scenario with every policy of the paper, or with load-aware and the methods."""
    held = [replace(s, budget=replace(s.budget, held_for=s.budget.held_for or HELD_FOR)) for s in base]
    if methods is None:
        return [replace(s, policy=policy) for s in held for policy in POLICIES]
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if names == [ALL]:
        names = [name for name in method_names() if not method_named(name).is_policy]
    found = [OURS, *(name for name in names if name != OURS)]
    if len(found) < 2 or len(set(found)) < len(found):
        raise BadInput(f"--methods {methods}: name one method at least beside {OURS}, and each once.")
    return [with_method(s, method_named(name)) for s in held for name in found]


def _scenario(
    dataset: PaperDataset, layout: PaperLayout, weights: Path | None, samples: int | None, sets: list[str] | None
) -> Scenario:
    named = scenario_named(f"{dataset}-{layout}")
    start = str(weights) if dataset is PaperDataset.cifar10 else None
    return changed(named, named.name, sets, budget__samples=samples, training__weights=start)


def _own_targets(like: Scenario, template: Request, out: Path, quiet: bool) -> tuple[float, ...]:
    """The targets that a run on IID data sets; it is played first."""
    request, folder = reference_run(template, like, out)
    play_grid([request], 1, None, quiet)
    return own_targets(folder, TARGETS["cifar10"])


def _conclude(folders: list[Path], out: Path, quiet: bool, tables_of: Callable[[Sequence[Run]], str]) -> None:
    runs = load_runs(folders)
    tables = tables_of(runs)
    write_atomically(out / "table.md", tables.encode())
    for name in sorted({run.scenario for run in runs}):
        write_figures([run for run in runs if run.scenario == name], out / "figures" / name, "png")
    page = write_report(folders, out)
    if not quiet:
        print(tables)
    print(f"Table: {out / 'table.md'}, figures: {out / 'figures'}{f', report: {page}' if page else ''}")

"""`tramfl reproduce`: the paper's Table I and figures, beside the paper's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from tramfl.cli.compare import JobsOption, RayOption, play_grid
from tramfl.cli.options import DataDirOption, QuietOption, SetOption, changed
from tramfl.cli.report import write_report
from tramfl.config import Budget, Partition, Scenario
from tramfl.notation import BadInput
from tramfl.record import RunFolder, write_atomically
from tramfl.reporting import load_runs, write_figures
from tramfl.reporting.paper import POLICIES, TARGETS
from tramfl.reporting.reproduction import reproduction_tables
from tramfl.simulation.grid import cells
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_named

IMAGENET_ACCURACY = 0.93
"""What a ResNet-18 pre-trained on ImageNet is commonly said to reach on CIFAR-10; a reference point, not measured."""
QUICK_SAMPLES = 20_000
REFERENCE_SAMPLES = 10_000
"""Samples of the IID run that sets targets of our own: the same for runs of any length, so that the targets stay."""


class PaperDataset(StrEnum):
    """Data sets of the paper."""

    mnist = "mnist"
    cifar10 = "cifar10"


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
    samples: Annotated[int | None, typer.Option(min=1, help="End a run after this many samples.")] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("runs/reproduction"),
    jobs: JobsOption = None,
    ray: RayOption = None,
    data_dir: DataDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Rebuild the paper's Table I and its figures beside the paper's own numbers; goes on where it stopped."""
    if quick:
        dataset = dataset or [PaperDataset.mnist]
        scenario = scenario or [PaperLayout.uneven]
        seeds, samples = seeds or 1, samples or QUICK_SAMPLES
    requests: list[Request] = []
    for name in dataset or list(PaperDataset):
        if name is PaperDataset.cifar10 and weights is None:
            raise BadInput("cifar10 starts from pre-trained weights: give them with --weights, or --dataset mnist.")
        base = [_scenario(name, layout, weights, samples, set_) for layout in scenario or list(PaperLayout)]
        template = Request(scenario=base[0], data_dir=data_dir)
        if name is PaperDataset.cifar10:
            own = _own_targets(base[0], template, out, quiet)
            base = [replace(s, budget=replace(s.budget, targets=_merged(s.budget.targets, own))) for s in base]
        requests += cells(base, POLICIES, range(seeds or 2), out, template)
    play_grid(requests, jobs, ray, quiet)
    _conclude([request.out for request in requests if request.out is not None], out, quiet)


def _scenario(
    dataset: PaperDataset, layout: PaperLayout, weights: Path | None, samples: int | None, sets: list[str] | None
) -> Scenario:
    named = scenario_named(f"{dataset}-{layout}")
    start = str(weights) if dataset is PaperDataset.cifar10 else None
    return changed(named, named.name, sets, budget__samples=samples, training__weights=start)


def _own_targets(like: Scenario, template: Request, out: Path, quiet: bool) -> tuple[float, ...]:
    """Targets at the same share of what training on IID data reaches as the paper's are of ImageNet's weights'.

    They are set by one run on IID data, before any policy is looked at.
    """
    reference = replace(
        like,
        name="cifar10-iid",
        policy="time-first",
        partition=Partition(layout="iid", nodes=10),
        budget=Budget(samples=REFERENCE_SAMPLES, seconds=like.budget.seconds),
    )
    request = replace(template, scenario=reference, out=out / "reference" / "cifar10-iid", threads=1)
    play_grid([request], 1, None, quiet)
    measured = [r.test_accuracy for r in RunFolder(request.out or out).rows() if r.test_accuracy is not None]
    reached = sum(measured[-5:]) / len(measured[-5:])
    return tuple(round(reached * target / IMAGENET_ACCURACY, 2) for target in TARGETS["cifar10"])


def _merged(targets: Sequence[float], more: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted({*targets, *more}))


def _conclude(folders: list[Path], out: Path, quiet: bool) -> None:
    runs = load_runs(folders)
    tables = reproduction_tables(runs)
    write_atomically(out / "table.md", tables.encode())
    for name in sorted({run.scenario for run in runs}):
        write_figures([run for run in runs if run.scenario == name], out / "figures" / name, "png")
    page = write_report(folders, out)
    if not quiet:
        print(tables)
    print(f"Table: {out / 'table.md'}, figures: {out / 'figures'}{f', report: {page}' if page else ''}")

"""Many runs in Python, and how results show themselves in a notebook.

found = tramfl.compare("digits-5-uneven", policies=["load-aware", "random"], seeds=5)
found.verdict
found.dataframe()
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tramfl.config import Scenario, by_key
from tramfl.learning.app import App
from tramfl.methods import Method, method_named, policy_method, with_method
from tramfl.notation import BadInput
from tramfl.record import Resolved, Summary
from tramfl.reporting import (
    Difference,
    Run,
    TargetTime,
    differences,
    load_runs,
    times_to_target,
    verdict,
    write_page,
)
from tramfl.reporting.figures import curve_svg
from tramfl.reporting.measures import Measure, in_order_of_difficulty, percent
from tramfl.reporting.runs import doubts
from tramfl.reporting.several import keeps_models, what_is_tested
from tramfl.reporting.summary import cell_text, reached_text, seconds
from tramfl.simulation.api import Result, app_name, changed, data_frame, own_app, simulate
from tramfl.simulation.grid import cells, finished, play_all, seeds_from, variants
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import DEFAULT, charging_own_model, is_named, scenario_from

PAPER_POLICIES = ("load-aware", "random", "time-first", "variance-first")


@dataclass(frozen=True)
class Comparison:
    """Runs side by side: times to targets, differences on equal seeds, and a verdict."""

    runs: tuple[Run, ...]
    folder: Path | None = None
    """Where the runs lie."""

    @classmethod
    def load(cls, *folders: str | Path) -> Comparison:
        """The runs of these folders, of one machine or of several."""
        return cls(tuple(load_runs(Path(folder) for folder in folders)))

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        return verdict(self.runs)

    @property
    def times(self) -> list[TargetTime]:
        """Mean time to every target, its 95 % confidence interval and its seeds; held times after the first ones."""
        return [*times_to_target(self.runs), *times_to_target(self.runs, "held")]

    @property
    def differences(self) -> list[Difference]:
        """How much later than the reference each policy reached each target, on equal seeds."""
        return differences(self.runs)

    @property
    def summaries(self) -> list[Summary]:
        """What each run came to."""
        return [run.summary for run in self.runs]

    def dataframe(self) -> Any:
        """A pandas.DataFrame with a row for every run and target."""
        rows = [
            {
                "scenario": run.scenario,
                "policy": run.policy,
                "seed": run.seed,
                "target": float(target),
                "seconds": reached,
                "held": (run.summary.seconds_held or {}).get(target),
                "accuracy": run.summary.test_accuracy,
                "metric": run.measure.metric,
                "measured": run.measured,
                "rounds": run.summary.rounds,
                "samples": run.summary.samples,
                "total_seconds": run.summary.total_seconds,
            }
            for run in self.runs
            for target, reached in (run.summary.seconds_to_target or {"nan": None}).items()
        ]
        return data_frame(rows)

    def report(self, path: str | Path) -> Path:
        """Write the page about these runs."""
        return write_page(self.runs, Path(path))

    def __repr__(self) -> str:
        return f"Comparison of {len(self.runs)} runs: {self.verdict}"

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(text)}</p>" for text in (self.verdict, *doubts(self.runs)))
        times, held = times_to_target(self.runs), times_to_target(self.runs, "held")
        return f"{notes}{_times_table(times, 'to')}{_times_table(held, 'to hold')}{curve_svg(self.runs)}"


def compare(
    scenarios: str | Path | Scenario | Sequence[str | Path | Scenario] | None = None,
    *,
    app: App | str | None = None,
    policies: Sequence[str] = PAPER_POLICIES,
    methods: Sequence[str] | None = None,
    seeds: int | str | Iterable[int] = 3,
    grid: Mapping[str, Sequence[Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    train: bool = True,
    jobs: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    data_dir: str | Path | None = None,
) -> Comparison:
    """Race methods on the same scenarios, seeds and loads, in processes of their own; `tramfl compare` in Python.

    `methods` are names that `tramfl methods` lists, and come in place of `policies`.
    `seeds` is how many, a text such as "10-19", or the seeds. `grid` varies keys of the scenario: every combination
    of `{"variance_limit": [50, 200]}` is played. With `out` the runs are kept there and a second call goes on where
    the first stopped; without, they lie in a temporary folder. `app` is your own model and data: by its place,
    `package.module:app`, or the object itself, with which runs are played one after the other in this process.
    """
    wanted = [scenarios] if isinstance(scenarios, str | Path | Scenario) else list(scenarios or [DEFAULT])
    raced = _raced(policies, methods)
    bases = [s if isinstance(s, Scenario) else scenario_from(str(s)) for s in wanted]
    changes = [
        ("name", app_name(app) if scenarios is None and app is not None else None),
        *by_key(settings or {}),
        ("app", app if isinstance(app, str) else None),
        ("budget.rounds", rounds),
    ]
    if train and own_app(app, changed(bases[0], changes)).model is not None:
        bases = [
            base if isinstance(given, Scenario) or not is_named(str(given)) else charging_own_model(base)
            for given, base in zip(wanted, bases, strict=True)
        ]
    found = [changed(with_method(base, method), changes) for base in bases for method in raced]
    found = [variant for scenario in found for variant in variants(scenario, grid)] if grid else found
    if len({(scenario.name, scenario.method_name) for scenario in found}) < len(found) or not found:
        raise BadInput("name every scenario and every policy or method once.")
    folder = Path(out) if out is not None else Path(mkdtemp(prefix="tramfl-"))
    chosen = seeds_from(str(seeds)) if isinstance(seeds, int | str) else tuple(seeds)
    place = Path(data_dir) if data_dir is not None else None
    template = Request(scenario=found[0], train=train, overwrite=overwrite, data_dir=place)
    requests = cells(found, chosen, folder, template)
    if isinstance(app, App):
        ends = (_played_here(request, app) for request in requests)
        todo = len(requests)
    else:
        missing = [request for request in requests if finished(request) is None]
        todo = len(missing)
        ends = (end for _, end in play_all(missing, min(jobs or os.cpu_count() or 1, max(1, todo))))
    with Progress(console=(console := Console(stderr=True)), disable=not console.is_jupyter) as bar:
        task = bar.add_task("runs", total=todo)
        for summary in ends:
            bar.advance(task)
            if summary.status == "interrupted":
                raise KeyboardInterrupt(f"interrupted; {folder} can be resumed")
        bar.refresh()  # in a notebook, the bar stays as it was drawn last
    return Comparison(tuple(load_runs(r.out for r in requests if r.out is not None)), folder)


def _raced(policies: Sequence[str], methods: Sequence[str] | None) -> list[Method]:
    """What is raced: the methods, or the policies where none are given."""
    given, named = (policies, policy_method) if methods is None else (methods, method_named)
    return [named(name) for name in ([given] if isinstance(given, str) else given)]


def _played_here(request: Request, app: App) -> Summary:
    """A run with an object that no other process has; a run that is there goes on, or is left as it is."""
    return simulate(
        request.scenario,
        app=app,
        train=request.train,
        out=request.out,
        resume=not request.overwrite,
        overwrite=request.overwrite,
        data_dir=request.data_dir,
        progress=False,
    ).summary


def result_html(result: Result) -> str:
    """A result in a notebook: its figures in a table, and its curve."""
    summary = result.summary
    rows = [
        ["rounds", f"{summary.rounds:,} ({summary.skipped_rounds:,} skipped)"],
        ["samples", f"{summary.samples:,}"],
        ["virtual time", f"{seconds(summary.total_seconds)} s"],
    ]
    measure = Measure.of(result.scenario.budget)
    run = _as_run(result)
    measured = run.measured
    if measured is not None:
        last = percent(round(measured, 4)) if measure.is_accuracy else measure.value(measured)
        rows.append([f"last test {measure.name}", last])
        if keeps_models(run):
            rows.append(["tested", what_is_tested(run)])
    rows += [
        [f"to {measure.target(float(target))}", reached_text(summary, target)] for target in summary.seconds_to_target
    ]
    if summary.divergence:
        rows.append(["warning", summary.divergence])
    if summary.stopped_because:
        rows.append(["stopped", summary.stopped_because])
    title = f"{summary.scenario}, {summary.policy}, seed {summary.seed}: {summary.status}"
    return f"<p><b>{escape(title)}</b></p>{_table(None, rows)}{curve_svg([run])}"


def _as_run(result: Result) -> Run:
    """A result as reports and figures take it."""
    resolved = Resolved(labels=result.labels, held=result.held, cost=result.summary.cost)
    settings = result.scenario
    return Run(result.folder or Path(), settings, resolved, result.rows, result.summary)


def _times_table(times: Sequence[TargetTime], until: str) -> str:
    """A row for every policy, a column for every target; nothing where there are no times."""
    aims = in_order_of_difficulty(time.aim for time in times)
    found = {(time.scenario, time.policy, time.aim): cell_text(time) for time in times}
    names = list(dict.fromkeys((time.scenario, time.policy) for time in times))
    rows = [[*name, *(found.get((*name, aim), "") for aim in aims)] for name in names]
    return _table(["scenario", "policy", *(f"seconds {until} {aim}" for aim in aims)], rows) if rows else ""


def _table(headings: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in headings or ())
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"

"""The Python API: `tramfl.simulate(...)` and the result it gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from tramfl.config import ACCURACY, Scenario, as_table, by_key, settings_from, with_value
from tramfl.learning.app import App, app_of
from tramfl.learning.data.fingerprint import fingerprint
from tramfl.learning.data.partition import OWN_LAYOUT
from tramfl.methods import method_named, with_method
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, Row, RunFolder, Summary, seconds_to
from tramfl.references import described, reference_to
from tramfl.scheduling.policy import Policy
from tramfl.simulation.experiment import Playing
from tramfl.simulation.loads import LoadSource
from tramfl.simulation.play import Request, check_own, play
from tramfl.simulation.scenarios import DEFAULT, charging_own_model, is_named, scenario_from
from tramfl.simulation.setting import torch_left_alone


@dataclass(frozen=True)
class Result:
    """A finished run."""

    scenario: Scenario
    summary: Summary
    rows: tuple[Row, ...]
    labels: tuple[str, ...]
    held: tuple[tuple[int, ...], ...]
    """Training samples per node and label."""
    folder: Path | None = None
    """Where its record lies, if it was asked to write one; `tramfl.reporting` draws from there."""
    network: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Makes a copy of the trained network; None where nothing was trained."""

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One flat table row a round: `pandas.DataFrame(result.rounds)` as it is."""
        return [_flat(row) for row in self.rows]

    @property
    def usage(self) -> list[dict[str, Any]]:
        """Samples of each label in each trained round, in long form: round, node, label, samples, used."""
        return [
            {"round": row.round, "node": row.node, "label": name, "samples": samples, "used": used}
            for row in self.rows
            if row.node is not None
            for name, samples, used in zip(self.labels, row.samples, row.used, strict=True)
        ]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """What was weighed in each round, in long form: one row a round and candidate."""
        return [
            {"round": row.round, "chosen": c.node == row.node, **msgspec.structs.asdict(c)}
            for row in self.rows
            for c in row.decision.candidates
        ]

    def seconds_to(self, target: float) -> float | None:
        """Virtual seconds until a test first reached an accuracy, or value of `budget.metric`; None if none did."""
        return seconds_to(self.rows, target, self.scenario.budget)

    def dataframe(self) -> Any:
        """The rounds as a pandas.DataFrame."""
        return data_frame(self.rounds)

    def model(self) -> Any:
        """The trained network: a copy with the weights after the last round, in evaluation mode."""
        if self.network is None:
            raise BadInput("the run was played without training: there is no model.")
        return self.network()

    def __repr__(self) -> str:
        summary = self.summary
        times = ", ".join(
            f"{target}: {'not reached' if after is None else f'{after:.4g} s'}"
            for target, after in summary.seconds_to_target.items()
        )
        stopped = f"stopped: {summary.stopped_because}" if summary.stopped_because else ""
        parts = (
            f"{summary.scenario}, {summary.policy}, seed {summary.seed}, {summary.status}: {summary.rounds:,}"
            f" {'round' if summary.rounds == 1 else 'rounds'}, {summary.samples:,} samples,"
            f" {summary.total_seconds:.4g} s",
            times,
            summary.divergence,
            stopped,
        )
        return f"Result({'; '.join(filter(None, parts))})"

    def _repr_html_(self) -> str:
        from tramfl.study import result_html  # above this layer: reports are no part of a simulation

        return result_html(self)


def data_frame(rows: list[dict[str, Any]]) -> Any:
    """A pandas.DataFrame of rows; BadInput where pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise BadInput("a data frame needs pandas: pip install 'tramfl[pandas]'.") from None
    return pd.DataFrame(rows)


def simulate(
    scenario: str | Path | Scenario | None = None,
    *,
    app: App | str | None = None,
    model: Any = None,
    data: Any = None,
    policy: str | Policy | Callable[..., Any] | None = None,
    method: str | None = None,
    loads: LoadSource | None = None,
    seed: int | None = None,
    rounds: int | None = None,
    targets: float | Sequence[float] | None = None,
    settings: Mapping[str, Any] | None = None,
    train: bool = True,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    data_dir: str | Path | None = None,
    threads: int | None = 1,
    observe: Callable[[Row], object] | None = None,
    progress: bool | None = None,
) -> Result:
    """Run a scenario in virtual time and give its rows, summary and tables.

    `scenario` is a name (default: digits-5-uneven), a TOML file or a `Scenario`. `model` is an `nn.Module` or a
    callable that makes one, `data` a `tramfl.Data` or `Dataset` or a callable that gives one; both take the place of
    what the scenario names. `app` brings both at once, and loss, optimiser and metrics of your own: the object that a
    real site takes, or its place, `package.module:app`. With a model of your own, a named scenario charges its
    size and FLOPs. `policy` is a name, `module:Class`, an object with `decide`, a class of such objects or the
    function itself. `method` is a name that `tramfl methods` lists: it sets the policy and whatever else belongs to
    the method. `loads` is any object with `at(round)`. `settings` changes keys of the scenario, by their dotted names
    or in tables: `{"training.batch_size": 64}` or `{"training": {"batch_size": 64}}`. With `out` the run is also
    recorded in that folder; `resume` goes on with the run that is there, with another budget if need be, and
    `overwrite` replaces it. An interrupt leaves the folder ready to be resumed. `observe` is called with every row
    and ends the run if it returns True. `progress` shows a bar; by default only in a notebook.
    """
    _check_arguments(threads, observe)
    objects = {"policy": policy, "loads": loads, "data": data, "model": model, "app": app}
    given = {kind: thing for kind, thing in objects.items() if thing is not None}
    base = _base(scenario, policy, method)
    arguments = {
        "policy": policy if isinstance(policy, str) or policy is None else reference_to(policy) or _name(policy),
        "app": app if isinstance(app, str) else None,
        "seed": seed,
        "budget.rounds": rounds,
        "budget.targets": _targets(targets),
    }
    changes = [*by_key(settings or {}), *arguments.items()]
    folder = Path(out) if out is not None else None
    place = Path(data_dir) if data_dir else None
    brought = _brought(changed(base, changes), app, model, data, place)
    found = _played(scenario, base, changes, app, brought, train)
    request = Request(
        again=_again(scenario, given),
        own=_own(given),
        data=None if brought.data is None else fingerprint(brought.data),
        scenario=found,
        out=folder,
        train=train,
        resume=resume,
        overwrite=overwrite,
        data_dir=place,
        threads=threads,
    )
    bar = _Bar(found, progress)

    def tell(experiment: Playing, row: Row) -> None:
        bar.show(row)
        if observe is not None and observe(row) is True:
            experiment.stop("observe returned True.")

    custom = policy if policy is not None and not isinstance(policy, str) else None
    with bar, torch_left_alone() if train else nullcontext():
        experiment = play(request, tell, app=brought, policy=custom, loads=loads)
        if experiment.finished:
            bar.fill()
    if folder is not None and not experiment.finished:
        raise KeyboardInterrupt(f"interrupted; {folder} can be resumed")
    setting = experiment.setting
    held = tuple(map(tuple, setting.held.tolist()))
    network = partial(setting.learner.module, experiment.weights) if isinstance(setting.learner, HasModule) else None
    return Result(found, experiment.summary(), tuple(experiment.rows), setting.labels, held, folder, network)


def _check_arguments(threads: Any, observe: Any) -> None:
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise BadInput(f"threads = {threads!r}: give a whole number of at least 1, or None for PyTorch's own choice.")
    if observe is not None and not callable(observe):
        raise BadInput(f"observe is a {type(observe).__name__}; give a function that takes a row.")


def _base(scenario: str | Path | Scenario | None, policy: object, method: str | None) -> Scenario:
    """The scenario that a caller named, with a method's settings, before any other change."""
    base = scenario if isinstance(scenario, Scenario) else scenario_from(str(scenario or DEFAULT))
    if method is None:
        return base
    if policy is not None:
        raise BadInput("every policy is a method of its own name: give one of policy and method.")
    return with_method(base, method_named(method))


def _brought(asked: Scenario, app: App | str | None, model: Any, data: Any, data_dir: Path | None) -> App:
    """The app that a run is played with, its data loaded; `model` and `data` come before the app's own."""
    found = own_app(app, asked)
    found = replace(found, model=found.model if model is None else model, data=found.data if data is None else data)
    loaded = found.dataset(data_dir=data_dir, seed=asked.seed)
    return found if loaded is None else replace(found, data=loaded, balance=None)


def _played(
    scenario: str | Path | Scenario | None,
    base: Scenario,
    changes: Sequence[tuple[str, Any]],
    app: App | str | None,
    brought: App,
    train: bool,
) -> Scenario:
    """The scenario that is played: the base, what the app brings, then the caller's changes."""
    if train and brought.model is not None and not isinstance(scenario, Scenario) and is_named(str(scenario or "")):
        base = charging_own_model(base)
    if scenario is None and (app is not None or brought.data is not None):
        base = changed(base, [("name", app_name(app if isinstance(app, str) else brought))])
    return changed(base, [*_keys_of(brought), *changes])


def _again(scenario: str | Path | Scenario | None, given: Collection[str]) -> Path | None:
    """The folder whose config.toml is played again; BadInput where its run had objects that are not given."""
    if not isinstance(scenario, str | Path) or Path(scenario).name != CONFIG_FILE:
        return None
    folder = Path(scenario).parent
    check_own(RunFolder(folder), given)
    return folder


def _own(given: Mapping[str, Any]) -> dict[str, str]:
    """The caller's objects that no scenario can name, as the record describes them."""
    return {
        kind: described(thing)
        for kind, thing in given.items()
        if not isinstance(thing, str) and (kind != "policy" or reference_to(thing) is None)
    }


@runtime_checkable
class HasModule(Protocol):
    """A learner that has a network."""

    def module(self, digest: str) -> Any:
        """A copy of the network with the weights of `digest`."""
        ...


class _Bar:
    """A bar that shows how much of its budget a run has used; the nearest limit counts."""

    def __init__(self, scenario: Scenario, wanted: bool | None) -> None:
        console = Console(stderr=True)
        self._budget = scenario.budget
        shown = console.is_jupyter if wanted is None else wanted
        self._bar = Progress(*Progress.get_default_columns(), console=console, disable=not shown)
        self._task = self._bar.add_task(f"{scenario.name}, {scenario.method_name}", total=1.0)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.refresh()  # in a notebook, `stop` leaves the bar as it was drawn last
        self._bar.stop()

    def fill(self) -> None:
        """The run has ended, most often at its last target and before its limits."""
        self._bar.update(self._task, completed=1.0)

    def show(self, row: Row) -> None:
        """A round is done."""
        budget = self._budget
        used = ((budget.rounds, row.round), (budget.seconds, row.total_seconds), (budget.samples, sum(row.used)))
        share = max((done / limit for limit, done in used if limit), default=0.0)
        value = row.measured(budget.metric)
        shown = "" if value is None else f"{value:.1%}" if budget.metric == ACCURACY else f"{value:.4g}"
        tested = shown and f", {budget.metric} {shown}"
        self._bar.update(self._task, completed=min(1.0, share), description=f"round {row.round:,}{tested}")


def changed(scenario: Scenario, changes: Iterable[tuple[str, Any]]) -> Scenario:
    """A scenario with other values of some keys, in the order given; None changes nothing."""
    table = as_table(scenario)
    for key, value in changes:
        if value is not None:
            table = with_value(table, key.split("."), _plain(value), f"settings: `{key}`")
    return settings_from(table, Scenario, "settings")


def own_app(app: App | str | None, scenario: Scenario) -> App:
    """The app that a caller gave, or else the scenario's."""
    if app is None or isinstance(app, str):
        return app_of(scenario)
    if not isinstance(app, App):
        raise BadInput(f"app is a {_kind(app)}; give a tramfl.App(model=..., data=...), or package.module:app.")
    return app


def app_name(app: App | str) -> str:
    """What runs of an app are called where no scenario gives them a name."""
    name = app.replace(":", ".") if isinstance(app, str) else getattr(app.data, "name", "own app")
    return str(name).replace("/", "_").replace("\\", "_")


def _keys_of(app: App) -> Iterator[tuple[str, Any]]:
    """What a scenario says of an app whose data are loaded."""
    if app.data is not None:
        yield "dataset", app.data.name
        if app.data.node_of_sample is not None:
            yield "partition.layout", OWN_LAYOUT
    if app.model is not None:
        yield "training.network", _name(app.model)


def _kind(thing: Any) -> str:
    return f"class, {thing.__name__}" if isinstance(thing, type) else type(thing).__name__


def _targets(targets: float | Sequence[float] | None) -> tuple[float, ...] | None:
    """One target or several."""
    if targets is None:
        return None
    return tuple(targets) if isinstance(targets, Iterable) else (targets,)


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's own, which settings are checked as."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _name(thing: Any) -> str:
    """What the record calls an object of the user's own."""
    named = getattr(thing, "name", None) or getattr(thing, "__name__", None)
    return named if isinstance(named, str) else type(thing).__name__


def _flat(row: Row) -> dict[str, Any]:
    table = msgspec.structs.asdict(row)
    decision = table.pop("decision")
    loads = table.pop("loads").in_full
    table.update(policy=decision.policy, reason=decision.reason, predicted_seconds=decision.predicted_seconds)
    for structure in ("schema", "sites", "copies", "trained", "sent", "sent_to", "models"):
        table.pop(structure)
    table["rejected"] = 0 if row.rejected is msgspec.UNSET else len(row.rejected)
    table["sent_bits"] = None if row.sent_bits is msgspec.UNSET else row.sent_bits
    table["overhead_seconds"] = row.overhead
    metrics = table.pop("metrics")
    table.update(metrics if isinstance(metrics, dict) else {})
    table["samples"] = sum(row.samples)
    table["diverged"] = row.diverged is True
    table.pop("used")
    actual = table.pop("actual")
    if row.node is not None:
        table.update(flops=loads.flops[row.node], bandwidth=loads.bandwidth[row.node])
        if actual is not msgspec.UNSET:
            table.update(actual_flops=actual.flops[row.node], actual_bandwidth=actual.bandwidth[row.node])
    return table

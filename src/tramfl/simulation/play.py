"""Play one run from a scenario into a folder: begin or resume, row by row, and leave it valid however it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct, structs

from tramfl.config import Budget, Scenario
from tramfl.learning.app import App
from tramfl.notation import BadInput, Counts
from tramfl.record import Resolved, Row, RunFolder, is_past_a_limit, ledger_after
from tramfl.simulation.arena import Arena
from tramfl.simulation.experiment import Experiment, Playing, Setting
from tramfl.simulation.loads import LoadSource
from tramfl.simulation.regret import regret_of
from tramfl.simulation.scenarios import LIMITS, difference
from tramfl.simulation.setting import scheduling_only, with_training

if TYPE_CHECKING:
    from tramfl.learning.training.learner import Learner

SAVE_SECONDS = 60.0
"""Wall-clock seconds between two savings of the weights during a run."""

Observe = Callable[[Playing, Row], None]
"""Sees every row, and may call the experiment's `stop`."""


class Request(Struct, frozen=True, kw_only=True):
    """A run to play: its scenario and where its record goes."""

    scenario: Scenario
    out: Path | None = None
    """The folder to write, or None to keep the run in memory alone."""
    train: bool = True
    resume: bool = False
    overwrite: bool = False
    data_dir: Path | None = None
    threads: int | None = None
    """Cores to train on; None leaves PyTorch its default."""
    processes: int = 1
    """Where every node keeps a model: processes that train nodes side by side."""
    own: dict[str, str] = {}
    """The caller's own objects that take part, which no scenario can name: policy, loads, data or model."""
    data: str | None = None
    """Fingerprint of the caller's own data."""
    again: Path | None = None
    """The folder of a run that is played again from its config.toml: the data must be those of that run."""
    keep_rows: bool = True
    """Keep the rows in memory; without, they are in the folder alone."""


def play(
    request: Request,
    observe: Observe | None = None,
    *,
    app: App | None = None,
    policy: Any = None,
    loads: LoadSource | None = None,
    report: Callable[[str, int, int | None], None] | None = None,
) -> Playing:
    """Play a run to its end, or to the user's interrupt, in which case its summary says so."""
    folder = RunFolder(request.out) if request.out is not None else None
    if folder is not None and request.resume and not folder.holds_run:
        request = structs.replace(request, resume=False)  # there is nothing to go on with yet
    with folder.alone() if folder is not None else nullcontext():
        if folder is not None:
            _check(folder, request)  # before data is loaded, or even fetched
        experiment, learner, done = _prepare(folder, request, app, policy, loads, report)

        def conclude() -> None:
            # A policy object of the caller's own may count its calls: no second run is played with it.
            if policy is None and isinstance(experiment, Experiment):
                experiment.regret = regret_of(experiment, loads)

        peers = experiment.setting.peers
        with closing(peers) if peers is not None else nullcontext():
            if folder is not None:
                _into(folder, request, experiment, learner, done, observe, conclude)
                return experiment
            for row in experiment.rounds():
                if observe is not None:
                    observe(experiment, row)
            conclude()
            return experiment


def _check(folder: RunFolder, request: Request) -> None:
    if request.resume:
        check_way(folder, request)
        if differs := difference(folder.scenario(), request.scenario, ignoring=(*LIMITS, "budget.targets")):
            raise BadInput(
                f"{folder.path}: a run can be resumed with another budget, and with nothing else changed: {differs}."
            )
    elif not request.overwrite:
        folder.check_free()


def _prepare(
    folder: RunFolder | None,
    request: Request,
    app: App | None,
    policy: Any,
    loads: LoadSource | None,
    report: Callable[[str, int, int | None], None] | None,
) -> tuple[Playing, Learner | None, list[Row]]:
    """The run, at its beginning or where its folder left off, and the rows it goes on from."""
    learner: Learner | None = None
    if request.train:
        setting, learner = with_training(
            request.scenario,
            request.data_dir,
            app=app,
            report=report,
            threads=request.threads,
            processes=request.processes,
        )
    else:
        setting = scheduling_only(request.scenario)
    if request.again is not None:
        _check_data(RunFolder(request.again), request, setting)
    done: list[Row] = []
    if folder is not None and request.resume:
        _check_data(folder, request, setting)
        done, setting = _take_up(folder, request.scenario.budget, setting, learner)
        if loads is not None:
            _check_loads(folder, done, loads)
    keep = request.keep_rows or folder is None
    if request.scenario.keeps_models:
        if policy is not None:
            raise BadInput(f"policy: {request.scenario.method_name} has none, for every node keeps a model.")
        return Arena(request.scenario, setting, loads=loads, done=done, keep_rows=keep), learner, done
    return Experiment(request.scenario, setting, policy=policy, loads=loads, done=done, keep_rows=keep), learner, done


def _resolved(request: Request, setting: Setting) -> Resolved:
    return Resolved(
        trained=request.train,
        threads=request.threads if request.train else None,
        labels=setting.labels,
        held=_held(setting),
        cost=setting.cost,
        own=request.own,
        data=request.data or setting.data,
    )


def _held(setting: Setting) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, setting.held.tolist()))


def check_own(folder: RunFolder, own: Collection[str]) -> None:
    """BadInput where a run was played with objects of its caller's own, and neither they nor others are given."""
    for kind, what in folder.resolved().own.items():
        if kind not in own:
            raise BadInput(
                f"{folder.config}: the run was played with the caller's own {kind}, {what}, which no file can bring"
                f" back; play it again with tramfl.simulate(..., {kind}=...)."
            )


def check_way(folder: RunFolder, request: Request) -> None:
    """Refuse to go on with a run in another way than it was begun."""
    before = folder.resolved()
    if before.clock == "real":
        raise BadInput(
            f"{folder.path} is the record of a real federation; replay it with tramfl run {folder.path}/config.toml"
            f" --loads {folder.path}/rounds.jsonl."
        )
    check_own(folder, request.own)
    for kind, what in request.own.items():
        if before.own.get(kind) != what:
            there = before.own.get(kind, "the scenario's")
            raise BadInput(f"{folder.path}: the run there is played with another {kind}: {there}, not {what}.")
    if before.data is not None and request.data is not None and before.data != request.data:
        raise BadInput(
            f"{folder.path}: the run there was played on other data: their fingerprint is {before.data}, that of the"
            f" data given is {request.data}."
        )
    if before.trained is not None and before.trained != request.train:
        how, remedy = ("with", "leave out") if before.trained else ("without", "add")
        raise BadInput(f"{folder.path}: the run there is played {how} training; {remedy} --no-training.")
    if before.threads is not None and before.threads != (request.threads if request.train else None):
        raise BadInput(
            f"{folder.path}: the run there trains on {before.threads} thread(s), and its last digits depend on it;"
            f" add --threads {before.threads}."
        )


def _into(
    folder: RunFolder,
    request: Request,
    experiment: Playing,
    learner: Learner | None,
    done: list[Row],
    observe: Observe | None,
    conclude: Callable[[], None],
) -> None:
    scenario, resolved = experiment.scenario, _resolved(request, experiment.setting)
    writer = folder.resume(done, scenario, resolved) if request.resume else folder.begin(scenario, resolved)
    saved_at = time.monotonic()
    # Rows in the file and the weights after them, always changed together: an interrupt may fall anywhere.
    safe = experiment.reached, writer.size
    try:
        for row in experiment.rounds():
            writer.write(row)
            safe = experiment.reached, writer.size
            if learner is not None and time.monotonic() - saved_at > SAVE_SECONDS:
                _save(folder, experiment)
                saved_at = time.monotonic()
            if observe is not None:
                observe(experiment, row)
        conclude()
    except KeyboardInterrupt:
        # The folder below is what makes the run resumable; the caller sees it in the summary.
        pass
    finally:
        reached, size = safe
        writer.cut(size)
        writer.close()
        experiment.go_back_to(reached)
        if learner is not None:
            _save(folder, experiment)
        folder.conclude(experiment.summary())


def _save(folder: RunFolder, experiment: Playing) -> None:
    saved = experiment.saved({"round": str(experiment.reached.tally.rounds)})
    if saved is not None:
        folder.save_model(saved.model, saved.state)


def _take_up(
    folder: RunFolder, budget: Budget, setting: Setting, learner: Learner | None
) -> tuple[list[Row], Setting]:
    """The rows that a resumed run may build on, and the setting with their weights."""
    rows = folder.rows()
    _check_fit(folder, rows, setting)
    if learner is not None:
        rows, setting = _with_weights(folder, rows, setting, learner)
    if rows[:-1] and is_past_a_limit(budget, ledger_after(rows[:-1])):
        raise BadInput(
            f"{folder.path} already has {len(rows)} rounds, more than this budget allows; give a larger budget,"
            " or another folder with --out."
        )
    return rows, setting


def _check_data(folder: RunFolder, request: Request, setting: Setting) -> None:
    """BadInput where the data, or the counts, that the scenario names are not those that the run was played on."""
    before, now, named = folder.resolved().data, setting.data, folder.scenario()
    table = request.scenario.partition.held
    if table is not None and table == named.partition.held and folder.resolved().held != _held(setting):
        raise BadInput(
            f"{folder.path}: the counts in {table} have changed since the run there was played; bring the former file"
            " back, or play a new run."
        )
    same = (named.dataset, named.app) == (request.scenario.dataset, request.scenario.app)
    if same and request.data is None and None not in (before, now) and before != now:
        what = request.scenario.app or request.scenario.dataset
        raise BadInput(
            f"{folder.path}: the data of {what} have changed since the run there was played: their fingerprint was"
            f" {before} and is {now}; bring the former data back, or play a new run."
        )


def _check_loads(folder: RunFolder, rows: Sequence[Row], loads: LoadSource) -> None:
    """BadInput where the caller's loads are not those that the rows were decided from."""
    for row in (rows[0], rows[-1]) if rows else ():
        now = [f if f is not None and math.isfinite(f) else None for f in loads.at(row.round).flops]
        if row.loads.steps is None and list(row.loads.flops) != now:
            raise BadInput(f"{folder.rounds}, line {row.round}: the loads given are not those of the run there.")


def _check_fit(folder: RunFolder, rows: list[Row], setting: Setting) -> None:
    nodes, labels = setting.held.shape
    for row in rows:
        where = (row.holder, row.holder if row.node is None else row.node)
        if len(row.loads.flops) != nodes or {len(row.samples), len(row.used)} != {labels} or max(where) >= nodes:
            raise BadInput(
                f"{folder.rounds}, line {row.round}, is not of this run, which has {nodes} nodes and {labels} labels."
            )


def _with_weights(
    folder: RunFolder, rows: list[Row], setting: Setting, learner: Learner
) -> tuple[list[Row], Setting]:
    content = folder.saved_weights()
    if content is None:
        return [], setting
    from tramfl.learning.model.weights import about

    path = folder.saved
    remedy = "remove it to play the run again from its beginning"
    try:
        round_ = int(about(content)["round"])
    except KeyError:
        raise BadInput(f"{path} does not say which round it belongs to; {remedy}.") from None
    except ValueError:
        raise BadInput(f"{path} cannot be read as the saved weights of a run; {remedy}.") from None
    if not 0 <= round_ <= len(rows):
        raise BadInput(f"{path} is of round {round_}, but {folder.rounds.name} has {len(rows)} rounds; {remedy}.")
    rows = rows[:round_]
    try:
        if isinstance(learner, KeepsModels):
            learner.restore_values(content)
            return rows, setting
        digest = learner.restore(content, drawn_by(rows, setting.held))
    except BadInput as error:
        raise BadInput(f"{path}: {str(error).rstrip('.')}; {remedy}.") from None
    return rows, replace(setting, initial=digest)


@runtime_checkable
class KeepsModels(Protocol):
    """A learner of all nodes' models."""

    def restore_values(self, content: bytes) -> None:
        """Take up the models of a file."""
        ...


def drawn_by(rows: list[Row], held: Counts) -> Counts:
    """Samples of each label that each node has trained."""
    drawn = np.zeros_like(held)
    for row in rows:
        if row.node is not None:
            drawn[row.node] += row.samples
    return drawn

"""The parts of the report in HTML: header, tables, frames for the figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from tramfl.record import Summary
from tramfl.reporting.colours import Look, in_order, kind_of
from tramfl.reporting.markup import Html, element, table, together
from tramfl.reporting.measures import Measure, Target, capital, in_order_of_difficulty
from tramfl.reporting.plots import Plot
from tramfl.reporting.run_plots import MANY_NODES, held_map
from tramfl.reporting.runs import Run, by_scenario, doubts, settings_of, virtual
from tramfl.reporting.several import (
    keeps_models,
    last_scores,
    mean_sent_gigabits,
    shared_in_words,
    tested_in_words,
    what_is_tested,
)
from tramfl.reporting.summary import (
    NOT_REACHED,
    Difference,
    TargetTime,
    cell_text,
    difference_text,
    differences,
    seconds,
    seeds_text,
    times_to_target,
)
from tramfl.reporting.verdict import verdict

Looks = dict[str, Look]

MOST_AUDIT = 20
"""Entries of the audit trail that the page shows."""


def header(title: str, runs: Sequence[Run]) -> Html:
    """Name, verdict, the essentials, and what to beware of."""
    notes = [element("li", note) for note in doubts(runs)]
    return together(
        [
            element("p", "tramfl report", class_="eyebrow"),
            element("h1", title),
            element("p", verdict(runs), class_="verdict", id="verdict"),
            element("ul", [element("li", fact) for fact in _facts(runs)], class_="facts"),
            element("ul", notes, class_="notes", aria_label="Please note") if notes else "",
        ]
    )


def _facts(runs: Sequence[Run]) -> list[str]:
    seeds, policies = {run.seed for run in runs}, in_order(run.policy for run in runs)
    groups = by_scenario(runs)
    facts = [_count(len(groups), "scenario")] if len(groups) > 1 else [_count(runs[0].nodes, "node")]
    if len(runs) == 1:
        return [*facts, runs[0].policy, f"seed {runs[0].seed}", _count(runs[0].summary.rounds, "round")]
    return [*facts, _count(len(policies), _kind(runs).lower()), _count(len(seeds), "seed"), _count(len(runs), "run")]


def contents(groups: dict[str, list[Run]]) -> Html:
    """Links to the scenarios."""
    links = [element("li", element("a", name, href=f"#s{i}")) for i, name in enumerate(groups)]
    return element("nav", element("ul", links), aria_label="Scenarios", class_="contents")


def scenario(
    key: str, name: str | None, runs: Sequence[Run], comparing: Sequence[Plot], inside: Sequence[Plot], looks: Looks
) -> Html:
    """All there is to one scenario; its name and a verdict of its own only where the page has several."""
    several, level = len(runs) > 1, "h2" if name is None else "h3"
    sections: list[tuple[str, list[Html]]] = [
        ("Time to target", [_target_table(runs, looks), _difference_table(runs, looks)]),
        (
            f"What each {_kind(runs).lower()} did" if several else "In numbers",
            [_totals(runs, looks), _models(runs, looks)],
        ),
        ("How it went", [_mode_choice(key, runs), _figures(key, comparing, level)]),
        (
            "Inside one run" if several else "Inside the run",
            [_run_choice(key, runs) if several else Html(), _figures(key, inside, level)],
        ),
        ("Who holds which labels", _layout(key, runs, level)),
    ]
    parts = [element("section", element(level, title), content) for title, content in sections if any(content)]
    if name is not None:
        parts = [element("h2", name), element("p", verdict(runs), class_="verdict small"), *parts]
    return element("section", parts, id=key, class_="scenario")


def _mode_choice(key: str, runs: Sequence[Run]) -> Html:
    """What the lines are, and the choice of what to show behind them."""
    policies = {run.policy for run in runs}
    if len(runs) == len(policies):
        return Html()
    # Bands of many policies lie on top of each other: few are shown at once, many on request.
    first = "band" if len(policies) <= 2 else "mean"
    choices = (("mean", "means alone"), ("band", "95 % confidence band"), ("seeds", "every seed"))
    buttons = [
        element(
            "label",
            element("input", type="radio", name_=f"{key}-mode", value=mode, checked=mode == first, data_mode=key),
            element("span", words),
        )
        for mode, words in choices
    ]
    legend = element("legend", "Lines are means over seeds. Show")
    return element("fieldset", legend, buttons, class_="modes", data_first=first)


def _target_table(runs: Sequence[Run], looks: Looks) -> Html:
    times = times_to_target(runs)
    if not times:
        return Html()
    aims = in_order_of_difficulty(time.aim for time in times)
    cells = {(time.policy, time.aim): time for time in times}
    held = {(time.policy, time.aim): time for time in times_to_target(runs, "held")}
    policies = in_order(run.policy for run in runs)
    rows = [
        [_policy(policy, looks), *(_time(cells.get((policy, aim)), held.get((policy, aim))) for aim in aims)]
        for policy in policies
    ]
    caption = f"{'Virtual seconds' if virtual(runs) else 'Seconds'} until a test first reached a target"
    if held:
        counts = sorted({run.settings.budget.held_for or 1 for run in runs})
        tests = " or ".join(map(str, counts))
        caption += f"; below it, since when the mean of the last {tests} tests held the target to the end"
    if len(runs) > len(policies):
        caption += f". Mean ± half of its 95 % confidence interval over {seeds_text(times)}"
    if any(0 < time.reached < time.seeds for time in times):
        caption += "; (3 of 5) means that only three of five seeds got there"
    missed = f" {NOT_REACHED} : not reached within the budget." if any(time.mean is None for time in times) else ""
    headings = [_kind(runs), *(f"to {aim}" for aim in aims)]
    return table(f"{caption}.{_directions(aims)}{missed}", headings, rows, class_=_targets_class(aims))


def _directions(aims: Sequence[Target]) -> str:
    """Which values of each metric are better; of accuracy everybody knows."""
    measures = dict.fromkeys(aim.measure for aim in aims)
    return "".join(
        f" {capital(measure.name)}: {'lower' if measure.lower else 'higher'} is better."
        for measure in measures
        if not measure.is_accuracy
    )


def _targets_class(aims: Sequence[Target]) -> str:
    """Few targets fit a phone side by side; more scroll."""
    return "numbers targets few" if len(aims) <= 3 else "numbers targets"


def _time(time: TargetTime | None, held: TargetTime | None) -> Html:
    if time is None:
        return element("td", "")
    below = Html()
    if held is not None and time.mean is not None:
        below = element(
            "small", f"held {cell_text(held)}" if held.mean is not None else "not held", class_="held-time"
        )
    if not time.wins:
        return element("td", _parted(cell_text(time)), below)
    badge = element("span", "fastest", class_="badge")
    return element("td", element("strong", _parted(cell_text(time))), badge, below, class_="best")


def _parted(text: str) -> Html:
    """A mean, and what follows it as a part that a narrow screen may put below."""
    mean, gap, rest = text.partition(" ")
    return together([mean, element("span", gap + rest, class_="pm")]) if rest else together([mean])


def _difference_table(runs: Sequence[Run], looks: Looks) -> Html:
    found = differences(runs)
    if not any(difference.interval is not None for difference in found):
        return Html()
    reference, aims = found[0].reference, in_order_of_difficulty(difference.aim for difference in found)
    cells = {(difference.policy, difference.aim): difference for difference in found}
    rows: list[list[str | Html]] = []
    for policy in in_order(difference.policy for difference in found):
        texts = [_difference(cells.get((policy, aim))) for aim in aims]
        rows.append([_policy(policy, looks), *texts])
    caption = (
        f"Seconds later than {reference} on equal seeds: mean ± half of its 95 % confidence interval, and how many"
        " seeds had both reach the target. In bold where the interval excludes 0."
    )
    headings = [_kind(runs), *(f"to {aim}" for aim in aims)]
    return table(caption, headings, rows, class_=_targets_class(aims))


def _difference(difference: Difference | None) -> Html:
    if difference is None:
        return element("td", NOT_REACHED)
    text = _parted(difference_text(difference))
    return element("td", element("strong", text) if difference.clear else text)


def _totals(runs: Sequence[Run], looks: Looks) -> Html:
    measures = dict.fromkeys(run.measure for run in runs if run.measured is not None)
    rows = []
    for policy in in_order(run.policy for run in runs):
        group = [run for run in runs if run.policy == policy]
        totals = [text([run.summary for run in group]) for _, text in TOTALS]
        sent = f"{mean_sent_gigabits(group):,.4g}"
        rows.append(
            [_policy(policy, looks), *totals, sent, *(_last_measured(group, measure) for measure in measures)]
        )
    bound = sorted({run.settings.variance_limit for run in runs if not keeps_models(run)})
    limits = f" The limit V on the variance is {', '.join(f'{limit:,.6g}' for limit in bound)}." if bound else ""
    means = " Means over seeds; the variance is the largest of any seed." if len(runs) > len(rows) else ""
    caption = f"Totals of the whole run.{means}{limits}"
    last = [f"Last {measure.name}" for measure in measures]
    headings = [_kind(runs), *(heading for heading, _ in TOTALS), "Sent (Gbit)", *last]
    return table(caption, headings, rows, class_="numbers")


def _models(runs: Sequence[Run], looks: Looks) -> Html:
    """How good the nodes' models are at the end, where every node keeps one."""
    rows: list[list[str | Html]] = []
    for policy in in_order(run.policy for run in runs):
        group = [run for run in runs if run.policy == policy]
        found = [(run.measure, scores) for run in group if (scores := last_scores(run)) is not None]
        if not found:
            continue
        cells = []
        for part in ("mean", "worst", "consensus"):
            values = [value for _, scores in found if (value := getattr(scores, part)) is not None]
            cells.append(found[0][0].value(statistics.fmean(values)) if values else "none")
        rows.append([_policy(policy, looks), *cells, what_is_tested(group[0])])
    if not rows:
        return Html()
    caption = (
        "As measured last, where every node keeps a model: over the nodes' models, and of the consensus, which is the"
        " server's model, or the mean of all models, taken for the test alone."
    )
    return table(caption, ["Method", "Mean", "Worst node", "Consensus", "Targets are of"], rows, class_="numbers")


def _rate(group: Sequence[Summary]) -> str:
    total = sum(summary.total_seconds for summary in group)
    return f"{sum(summary.samples for summary in group) / total:,.0f}" if total else ""


def _last_measured(group: Sequence[Run], measure: Measure) -> str:
    """The mean of what was measured last in the runs that have this measure."""
    values = [run.measured for run in group if run.measure == measure]
    found = [value for value in values if value is not None]
    return measure.value(statistics.fmean(found)) if found else ""


TOTALS: tuple[tuple[str, Callable[[Sequence[Summary]], str]], ...] = (
    ("Rounds", lambda group: f"{statistics.fmean(summary.rounds for summary in group):,.0f}"),
    ("Skipped", lambda group: f"{statistics.fmean(summary.skipped_rounds for summary in group):,.0f}"),
    ("Samples", lambda group: f"{statistics.fmean(summary.samples for summary in group):,.0f}"),
    ("Seconds", lambda group: seconds(statistics.fmean(summary.total_seconds for summary in group))),
    ("Samples\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}s", _rate),
    ("Largest label variance", lambda group: f"{max(summary.largest_label_variance for summary in group):,.0f}"),
)
"""The table of totals: each column's heading, and its text from a policy's summaries. Metrics follow."""


def _policy(policy: str, looks: Looks) -> Html:
    look = looks[policy]
    line = element("path", d="M0 5H26", stroke=look.colour, stroke_dasharray=look.dashes)
    return together([element("svg", line, class_="swatch", viewBox="0 0 26 10", aria_hidden="true"), policy])


def _figures(key: str, plots: Sequence[Plot], level: str) -> Html:
    return element("div", [_figure(key, plot, level) for plot in plots], class_="figures")


def _figure(key: str, plot: Plot, level: str) -> Html:
    name = f"{key}-{plot.key}"
    heading = element("h4" if level == "h3" else "h3", plot.title, id=f"{name}-title")
    drawing = element(
        "div",
        data_plot=name,
        class_="plot",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-words",
    )
    words = element("figcaption", plot.words, id=f"{name}-words")
    return element("figure", heading, drawing, words, class_="wide" if plot.wide else None)


def _run_choice(key: str, runs: Sequence[Run]) -> Html:
    options = [element("option", f"{run.policy}, seed {run.seed}", value=i) for i, run in enumerate(runs)]
    return element("p", element("label", "Run ", element("select", options, data_choose=key)), class_="choice")


def _layout(key: str, runs: Sequence[Run], level: str) -> list[Html]:
    """Who holds what: a table of few nodes; of many a heat map, and a list that can be sorted."""
    run = next((run for run in runs if run.held), None)
    if run is None:
        return [Html()]
    if run.nodes <= MANY_NODES:
        return [_layout_table(run)]
    return [_figures(key, [held_map(run)], level), _node_list(run, alone=len(runs) == 1)]


def _layout_table(run: Run) -> Html:
    most = max((count for node in run.held for count in node), default=0) or 1
    rows: list[list[str | Html]] = []
    for node, held in enumerate(run.held):
        cells = [
            element(
                "td",
                f"{count:,}" if count else "·",
                style=f"--share:{count / most:.2f}",
                class_="held" if count else "none",
            )
            for count in held
        ]
        rows.append([f"Node {node}", *cells, f"{sum(held):,}"])
    return table("Training samples per node and label.", ["Node", *run.labels, "All"], rows, class_="numbers layout")


def _node_list(run: Run, *, alone: bool) -> Html:
    """The nodes as a list: what each holds, and what it did where the page is about this run alone."""
    rounds, samples = [0] * run.nodes, [0] * run.nodes
    for row in run.rows if alone else ():
        for trained in row.by_node:
            rounds[trained.node] += 1
            samples[trained.node] += sum(trained.samples)
    rows: list[list[str | Html]] = []
    for node, held in enumerate(run.held):
        did = [f"{rounds[node]:,}", f"{samples[node]:,}"] if alone else []
        rows.append([f"Node {node}", f"{sum(held):,}", str(sum(count > 0 for count in held)), *did])
    headings = ["Node", "Samples held", "Labels held", *(["Rounds trained", "Samples trained"] if alone else [])]
    caption = "Every node. A click on a heading sorts the list."
    return element("div", table(caption, headings, rows, class_="numbers sortable"), class_="tall")


def audit(run: Run) -> Html:
    """The newest entries of the audit trail about rounds that do not count; nothing where there are none."""
    if not run.audit:
        return Html()
    shown = run.audit[-MOST_AUDIT:]
    rows = [
        [
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry.at)),
            f"{entry.round:,}",
            entry.what,
            entry.author or "?",
            entry.digest[:12],
            (entry.parent or "?")[:12],
            entry.reason,
        ]
        for entry in reversed(shown)
    ]
    caption = (
        f"The newest {len(shown):,} of {len(run.audit):,} entries about rounds that were dropped, rolled back or not"
        " accepted. audit.jsonl in the run's folder has them all, and which site made which weights."
    )
    headings = ["UTC", "Round", "What", "Trained at", "Weights", "From", "Why"]
    return element("section", element("h2", "Audit trail"), table(caption, headings, rows), id="audit")


def what_was_run(runs: Sequence[Run]) -> Html:
    """The runs' settings, versions and folders."""
    settings = settings_of(runs)
    rows = [[element("code", key), " | ".join(values)] for key, values in settings.items()]
    places = [
        [str(run.folder), run.scenario, run.policy, str(run.seed), f"{run.summary.rounds:,}", run.summary.status]
        for run in runs
    ]
    headings = ["Folder", "Scenario", _kind(runs), "Seed", "Rounds", "Status"]
    every = table("Settings of the runs; several values where they differ.", ["Key", "Value"], rows)
    where = table("The runs of this report.", headings, places)
    return together(
        [
            element("dl", _essentials(runs, settings), class_="run"),
            element("details", element("summary", "Every setting"), every),
            element("details", element("summary", "Where the records are"), where),
        ]
    )


def _essentials(runs: Sequence[Run], settings: dict[str, list[str]]) -> list[Html]:
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.resolved.versions.items():
            versions.setdefault(name, set()).add(version)
    costs = {
        f"{cost.flops_per_sample / 1e6:,.4g} MFLOP a sample, {cost.model_bits / 1e6:,.4g} Mbit a hop"
        for cost in (run.summary.cost for run in runs)
        if cost.flops_per_sample
    }
    aims = [Target(run.measure, target) for run in runs for target in run.settings.budget.targets]
    facts = {
        "Data set": settings.get("dataset", []),
        "Layout": settings.get("partition.layout", []),
        "Policies": in_order(run.policy for run in runs),
        "Tested": [words] if (words := tested_in_words(runs)) else [],
        "Shared": shared_in_words(runs),
        "Seeds": [str(seed) for seed in sorted({run.seed for run in runs})],
        "Targets": [str(aim) for aim in in_order_of_difficulty(aims)],
        "Model": sorted(costs),
        "Versions": [f"{name} {', '.join(sorted(found))}" for name, found in versions.items()],
    }
    return [
        element("div", element("dt", key), element("dd", ", ".join(values)))
        for key, values in facts.items()
        if values
    ]


def _kind(runs: Sequence[Run]) -> str:
    return kind_of(run.policy for run in runs).capitalize()


def _count(number: int, thing: str) -> str:
    plural = {"policy": "policies"}.get(thing, thing + "s")
    return f"{number:,} {thing if number == 1 else plural}"

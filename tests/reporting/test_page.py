from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import tramfl
from tramfl.notation import BadInput
from tramfl.record import AuditEntry
from tramfl.reporting import Run, load_run, write_page
from tramfl.reporting.summary import seconds

MakeRun = Callable[..., Path]
HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b>&amp;"


class Outline(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def packed(html: str, name: str) -> bytes:
    found = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', html)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1]))


def page_of(runs: list[Run], folder: Path) -> str:
    return write_page(runs, folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def one(make_run: MakeRun) -> Run:
    return load_run(make_run())


@pytest.fixture
def many(make_run: MakeRun) -> list[Run]:
    policies = ("load-aware", "random", "time-first")
    return [load_run(make_run(f"{p}-{s}", policy=p, seed=s)) for p in policies for s in range(2)]


def test_the_page_reaches_nothing_outside_itself(one: Run, tmp_path: Path) -> None:
    outline = Outline(page_of([one], tmp_path))
    for attributes in outline.named("script", "link", "img", "iframe", "a"):
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for a in outline.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_plotly_is_in_the_page_exactly_once_and_allowed_to_run(one: Run, tmp_path: Path) -> None:
    html = page_of([one], tmp_path)
    library = packed(html, "library")
    assert b"plotly.js v" in library[:200]
    assert len(Outline(html).named("script")) == 3
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    for code in (library, scripts[0].encode()):
        assert f"sha256-{base64.b64encode(hashlib.sha256(code).digest()).decode()}" in html


def test_the_page_is_far_lighter_than_plotly_alone(many: list[Run], tmp_path: Path) -> None:
    html = page_of(many, tmp_path)
    assert len(html) < 0.5 * len(packed(html, "library"))


def test_the_same_runs_give_the_same_page(many: list[Run], tmp_path: Path) -> None:
    assert page_of(many, tmp_path / "a") == page_of(many, tmp_path / "b")


def test_a_folder_gets_the_page_under_its_usual_name(one: Run, tmp_path: Path) -> None:
    assert write_page([one], tmp_path) == tmp_path / "report.html"


def test_no_run_makes_no_page(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at least one run"):
        write_page([], tmp_path)


def test_plotly_accepts_every_figure(many: list[Run], tmp_path: Path) -> None:
    from plotly import graph_objects

    plots = json.loads(packed(page_of(many, tmp_path), "data"))["plots"]
    assert {name.split("-", 1)[1] for name in plots} == {
        "accuracy", "time", "local-loss", "global-loss", "spent", "usage", "labels", "route",
    }  # fmt: skip
    for plot in plots.values():
        for view in plot["views"]:
            graph_objects.Figure(view["data"], view["layout"])


def test_every_figure_is_described_in_words(many: list[Run], tmp_path: Path) -> None:
    html = page_of(many, tmp_path)
    outline = Outline(html)
    names = {attributes["id"] for _, attributes in outline.elements if "id" in attributes}
    drawings = [a for a in outline.named("div") if "data-plot" in a]
    assert {a["data-plot"] for a in drawings} == set(json.loads(packed(html, "data"))["plots"])
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert drawing["aria-labelledby"] in names
        assert drawing["aria-describedby"] in names
    assert html.count("<figcaption") == html.count("<figure") == len(drawings)
    assert "<figcaption></figcaption>" not in html


def test_tables_have_captions_and_scoped_headings(many: list[Run], tmp_path: Path) -> None:
    outline = Outline(page_of(many, tmp_path))
    assert len(outline.named("caption")) == len(outline.named("table")) > 3
    assert all(attributes.get("scope") in ("row", "col") for attributes in outline.named("th"))
    assert len(outline.named("h1")) == 1


def test_the_winner_is_marked_in_words(many: list[Run], tmp_path: Path) -> None:
    html = page_of(many, tmp_path)
    part = r"(<span class=\"pm\">[^<]+</span>)?"
    best = rf"load-aware</th><td class=\"best\"><strong>[^<]+{part}</strong><span class=\"badge\">fastest<"
    assert re.search(best, html)


def test_a_policy_has_one_colour_all_over_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    names = [f"outside-{i}" for i in range(6)]
    html = page_of([load_run(make_run(name, policy=name, rounds=5)) for name in names], tmp_path)
    plots = json.loads(packed(html, "data"))["plots"]
    lines = {t["name"]: t["line"]["color"] for t in plots["s0-time"]["views"][0]["data"]}
    for name, view in zip(names, plots["s0-usage"]["views"], strict=True):
        assert view["data"][0]["marker"]["color"] == lines[name]
        drawn = re.escape(f'stroke="{lines[name]}"')
        assert re.search(rf'<svg class="swatch"[^>]*><path [^>]*{drawn}[^>]*></path></svg>{name}<', html)


def test_methods_of_one_colour_have_lines_of_their_own_before_their_names(make_run: MakeRun, tmp_path: Path) -> None:
    names = ["random", "fedavg", "fedavg-m-of-n", "fedavg-beside", "fedprox"]
    html = page_of([load_run(make_run(name, policy=name)) for name in names], tmp_path)
    lines = {
        found[2]: found[1] for found in re.finditer(r'class="swatch"[^>]*><path ([^>]*)></path></svg>([^<]+)<', html)
    }
    assert lines.keys() == set(names)
    assert len(set(lines.values())) == len(names)


def test_a_page_for_one_run_lists_every_round_with_its_reason(one: Run, tmp_path: Path) -> None:
    rounds = json.loads(packed(page_of([one], tmp_path), "data"))["rounds"]
    assert rounds["round"] == [row.round for row in one.rows]
    assert rounds["reason"] == [row.decision.reason for row in one.rows]


def test_a_run_of_real_sites_has_a_column_for_its_overhead_and_a_simulated_one_has_none(
    one: Run, tmp_path: Path
) -> None:
    heading = '<th scope="col">Overhead</th>'
    assert heading not in page_of([one], tmp_path)
    rows = tuple(replace(row, overhead_seconds=0.25) for row in one.rows)
    html = page_of([dataclasses.replace(one, rows=rows)], tmp_path)
    assert heading in html
    assert " s overhead (gathering, deciding, the register and the disk)" in html
    assert json.loads(packed(html, "data"))["rounds"]["overhead"] == [0.25] * len(rows)


def test_the_page_lists_rounds_that_do_not_count_newest_first_and_escaped(one: Run, tmp_path: Path) -> None:
    assert "Audit trail" not in page_of([one], tmp_path)
    entries = [AuditEntry(1e9, "dropped", "run", 1, k, "d" * 64, None, "<b>", 0, f"why {k}.") for k in range(30)]
    (one.folder / "audit.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, entries)) + b"\n")
    html = page_of([load_run(one.folder)], tmp_path)
    assert "The newest 20 of 30 entries" in html
    assert "why 29." in html
    assert "why 9." not in html
    assert html.index("why 29.") < html.index("why 10.")
    assert "<td>&lt;b&gt;</td>" in html


def test_a_policy_of_many_short_rounds_does_not_squeeze_the_others(make_run: MakeRun, tmp_path: Path) -> None:
    lengths = {"time-first": 900, "load-aware": 30, "random": 60}
    runs = [load_run(make_run(name, policy=name, rounds=rounds)) for name, rounds in lengths.items()]
    html = page_of(runs, tmp_path)
    layout = json.loads(packed(html, "data"))["plots"]["s0-time"]["views"][0]["layout"]
    assert layout["xaxis"]["range"] == [0, 75]
    assert "The first 75 rounds are shown; double-click shows all." in html


def test_a_caption_has_the_same_means_as_the_table(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [load_run(make_run(f"r{rounds}", seed=rounds, rounds=rounds)) for rounds in (10, 20)]
    html = page_of(runs, tmp_path)
    total = sum(run.summary.total_seconds for run in runs) / 2
    assert f"load-aware: {seconds(total)} s after 15 rounds" in html
    assert re.search(rf"<td>15</td>.*<td>{re.escape(seconds(total))}</td>", html)


def test_seeds_and_confidence_bands_are_there_to_be_chosen(many: list[Run], tmp_path: Path) -> None:
    html = page_of(many, tmp_path)
    traces = json.loads(packed(html, "data"))["plots"]["s0-accuracy"]["views"][0]["data"]
    assert {trace.get("meta") for trace in traces} == {None, "band", "seeds"}
    assert len(re.findall(r'type="radio"', html)) == 3


def test_a_hundred_nodes_become_a_heat_map_and_a_list_to_sort(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("\n".join(f"{i},{i + 1}" for i in range(100)))
    settings = {"partition.held": str(table)}
    tramfl.simulate("digits-3", train=False, rounds=9, settings=settings, out=tmp_path / "run")
    html = page_of([load_run(tmp_path / "run")], tmp_path)
    plots = json.loads(packed(html, "data"))["plots"]
    assert {plots[f"s0-{key}"]["views"][0]["data"][0]["type"] for key in ("usage", "held")} == {"heatmap"}
    assert len(max(re.findall(r"<figcaption[^>]*>([^<]*)<", html), key=len)) < 300
    assert 'class="numbers sortable"' in html
    assert "layout" not in re.findall(r'class="numbers ([a-z]+)"', html)


def test_a_page_for_several_runs_lists_no_rounds(many: list[Run], tmp_path: Path) -> None:
    html = page_of(many, tmp_path)
    assert "rounds" not in json.loads(packed(html, "data"))
    assert 'id="rounds"' not in html


def test_a_run_of_the_scheduler_alone_has_no_empty_figure(make_run: MakeRun, tmp_path: Path) -> None:
    html = page_of([load_run(make_run(training=False, targets=(), resolved={}))], tmp_path)
    plots = json.loads(packed(html, "data"))["plots"]
    assert {name.split("-", 1)[1] for name in plots} == {"time", "spent", "usage", "labels", "route"}
    text = Outline(html).text
    assert "Scheduling only" in text
    assert "Time to target" not in text
    assert "Who holds which labels" not in text


def test_several_scenarios_each_get_a_section_and_a_verdict(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [load_run(make_run(f"{s}{p}", scenario=s, policy=p)) for s in ("a", "b") for p in ("load-aware", "random")]
    html = page_of(runs, tmp_path)
    assert html.count('class="verdict small"') == 2
    assert 'href="#s1"' in html
    assert 'id="s1"' in html


def test_five_thousand_rounds_stay_light(make_run: MakeRun, tmp_path: Path) -> None:
    html = page_of([load_run(make_run(rounds=5000))], tmp_path)
    assert len(html) - len(base64.b64encode(gzip.compress(packed(html, "library"), 9))) < 300_000
    for plot in json.loads(packed(html, "data"))["plots"].values():
        for trace in plot["views"][0]["data"]:
            assert len(trace["y"]) <= 5000


@pytest.fixture
def hostile(make_run: MakeRun) -> Run:
    braces = HOSTILE.replace("{", "{{")
    resolved = {
        "labels": [HOSTILE + str(c) for c in range(10)],
        "held": [[1] * 10] * 5,
        "versions": {HOSTILE: HOSTILE},
    }
    return load_run(make_run(scenario=HOSTILE, policy=HOSTILE, reason=braces, resolved=resolved, dataset=HOSTILE))


def test_hostile_text_in_a_run_file_adds_no_element(one: Run, hostile: Run, tmp_path: Path) -> None:
    mild, wild = Outline(page_of([one], tmp_path / "a")), Outline(page_of([hostile], tmp_path / "b"))
    assert not wild.named("img")
    assert len(wild.named("script")) == len(mild.named("script"))
    assert all(not key.startswith("on") for _, attributes in wild.elements for key in attributes)
    assert HOSTILE in wild.text


def test_hostile_text_reaches_plotly_escaped(hostile: Run, tmp_path: Path) -> None:
    for plot in json.loads(packed(page_of([hostile], tmp_path), "data"))["plots"].values():
        assert "<img" not in json.dumps(plot["views"])


def test_the_base_install_can_import_reporting_and_says_what_is_missing(make_run: MakeRun) -> None:
    code = """
import sys
sys.modules["plotly"] = sys.modules["matplotlib"] = None
from pathlib import Path
from tramfl.notation import BadInput
from tramfl.record import AuditEntry
from tramfl.reporting import load_run, verdict, write_figures, write_page
run = load_run(Path(sys.argv[1]))
for write in (write_figures, write_page):
    try:
        write([run], Path(sys.argv[1]) / "out")
    except BadInput as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(make_run(rounds=3))], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.count("tramfl[dashboard]") == 2

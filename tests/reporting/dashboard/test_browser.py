"""The pages as a browser shows them: Debian's Chromium, driven by Playwright; nothing but this machine is reached."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from playwright import sync_api

import tramfl
from benchmarks.pages import FLAGS
from tests.conftest import PATIENCE, Process, ended, wait_for_rows
from tests.reporting.dashboard.conftest import LOST, Watch, append, rows_of, watching, with_takeover, write_rows
from tests.system_parts import require
from tramfl.record import ROUNDS_FILE, Now, Regret, Row, RowLoads, RunFolder, SiteNow
from tramfl.reporting import load_run, write_page
from tramfl.reporting.dashboard import FolderSource

MakeRun = Callable[..., Path]
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""A page that asks for another machine finds none."""
HOSTILE = "</script><img src=x onerror=\"document.title='pwned';alert(1)\"><b>&amp;"
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = require("chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS, ALONE])
        yield found
        found.close()


class Tab:
    """A page in a browser window of its own, with all that went wrong in it."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", self._refuse)

    def _refuse(self, dialog: Any) -> None:
        self.wrong.append(dialog.message)
        dialog.dismiss()

    def open(self, url: str) -> Tab:
        self.page.goto(url)
        self.until("document.documentElement.dataset.ready === 'true'")
        return self

    def get(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, expression: str) -> None:
        """Wait for a condition; patiently, as the machine may be busy."""
        until = time.monotonic() + PATIENCE
        while not self.page.evaluate(expression):
            if time.monotonic() > until:
                shown = self.page.inner_text("body")[:2000]
                raise AssertionError(f"never came true: {expression}; {self.wrong}; {shown}")
            self.page.wait_for_timeout(50)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def state(self, name: str) -> Any:
        return self.page.evaluate(f"tramfl.state().{name}")

    def scrub(self, done: int) -> None:
        self.page.evaluate(
            f"(() => {{ const s = document.getElementById('scrub'); s.value = {done};"
            " s.dispatchEvent(new Event('input')); })()"
        )
        self.until(f"document.getElementById('place').textContent.startsWith('{done} /')")


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Opens windows of any size and taste; they may ask nobody but this machine, and nothing may go wrong in them."""
    contexts, tabs = [], []

    def open_window(width: int = 1280, height: int = 900, **taste: Any) -> Tab:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **taste))
        tabs.append(Tab(contexts[-1]))
        return tabs[-1]

    yield open_window
    for each in tabs:
        assert {urlsplit(url).hostname for url in each.asked if not url.startswith(("data:", "file:", "blob:"))} <= {
            "127.0.0.1"
        }
        assert each.wrong == []
    for context in contexts:
        context.close()


Window = Callable[..., Tab]


def test_the_report_of_a_finished_run_draws_every_figure(make_run: MakeRun, tab: Window, tmp_path: Path) -> None:
    page = write_page([load_run(make_run())], tmp_path / "report.html")
    window = tab(1280, 9000).open(page.as_uri())
    window.until("document.querySelectorAll('.plot .main-svg').length >= 8")
    assert window.page.is_hidden("#trouble")
    window.page.get_by_role("button", name="Later rounds").click()
    assert "51 to 60 of 60" in window.text("#rounds")
    small = tab(390, 844, color_scheme="dark").open(page.as_uri())
    assert not small.get(SIDEWAYS)
    assert small.get("getComputedStyle(document.body).backgroundColor") != window.get(
        "getComputedStyle(document.body).backgroundColor"
    )


def test_hostile_text_in_a_run_file_stays_text_in_the_report(make_run: MakeRun, tab: Window, tmp_path: Path) -> None:
    resolved = {"labels": [HOSTILE + str(c) for c in range(10)], "held": [[1] * 10] * 5}
    folder = make_run(scenario=HOSTILE, policy=HOSTILE, reason=HOSTILE.replace("{", "{{"), resolved=resolved)
    window = tab(1280, 9000).open(write_page([load_run(folder)], tmp_path / "report.html").as_uri())
    window.until("document.querySelectorAll('.plot .main-svg').length >= 8")
    assert window.get("document.querySelectorAll('img, iframe').length") == 0
    assert window.get("document.title") != "pwned"
    assert "1 to 50 of 60" in window.text("#rounds")


def test_rounds_appear_by_themselves_from_before_the_first(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    folder = make_run(rounds=12, summary=False)
    rows = rows_of(folder)
    write_rows(folder, [])
    window = tab().open(watch(folder).url)
    window.until("document.getElementById('now-what').textContent === 'Waiting for the first round.'")
    assert window.text("#status") == "Running"
    assert window.page.locator("#sites tr").count() == 5
    append(folder, rows[:3])
    window.until("document.getElementById('place').textContent === '3 / 3'")
    for row in rows[3:]:
        append(folder, [row])
    window.until("document.getElementById('place').textContent === '12 / 12'")
    assert "Round 13 is being worked out." in window.text("#now-what")
    newest = window.page.locator("#log li").first
    assert rows[-1].decision.reason in newest.inner_text()
    assert window.text("#n-metric") == f"{round(100 * (rows[-1].test_accuracy or 0), 1):g} %"
    fetched = [url for url in window.asked if "/changes" in url]
    assert "after=3" in " ".join(fetched)  # rows that were there are not asked for again


def test_a_real_run_is_followed_to_its_end(process: Process, watch: Watch, tab: Window, tmp_path: Path) -> None:
    # The run waits after its tenth row until it has been seen running, however long a browser takes.
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "sitecustomize.py").write_text(
        "import os, time\n"
        "from tramfl.record import RowWriter\n"
        "write = RowWriter.write\n"
        "def gated(self, row):\n"
        "    write(self, row)\n"
        "    while row.round == 10 and not os.path.exists('seen'):\n"
        "        time.sleep(0.05)\n"
        "RowWriter.write = gated\n"
    )
    gate = {"PYTHONPATH": str(tmp_path / "gate")}
    running = process("run", "--no-training", "--rounds", 25, "--out", "run", "--quiet", **gate)
    wait_for_rows(tmp_path / "run", 10)
    window = tab().open(watch(tmp_path / "run").url)
    window.until("document.getElementById('status').textContent === 'Running'")
    window.until("tramfl.state().following && tramfl.state().at > 3")
    (tmp_path / "seen").touch()
    assert ended(running).code == 0
    window.until("document.getElementById('status').textContent === 'Finished' && tramfl.state().at === 25")
    assert "samples in round 25." in window.text("#now-what") or "waited in round 25." in window.text("#now-what")
    assert window.page.is_hidden("#live")


def test_the_page_survives_a_restart_of_the_server(make_run: MakeRun, tab: Window) -> None:
    folder = make_run(rounds=20, summary=False)
    rows = rows_of(folder)
    write_rows(folder, rows[:10])
    with watching(FolderSource(folder)) as first:
        port = first.port
        window = tab().open(first.url)
        window.until("tramfl.state().rows === 10")
    window.until("document.getElementById('status').textContent === 'Lost contact'")
    assert "tries again by itself" in window.text("#trouble")
    append(folder, rows[10:])
    with watching(FolderSource(folder), port=port):
        window.until("tramfl.state().rows === 20 && tramfl.state().contact === 'held'")
        assert window.page.is_hidden("#trouble")
        again = [url for url in window.asked if "after=10" in url]
        assert again  # it went on where it was


def test_a_run_in_place_of_another_is_shown_from_its_beginning(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    folder = make_run(rounds=20)
    window = tab().open(watch(folder).url)
    window.until("tramfl.state().rows === 20")
    for path in folder.iterdir():
        path.unlink()
    make_run(rounds=7, policy="random", scenario="another", seed=4)
    window.until("tramfl.state().rows === 7 && document.getElementById('title').textContent === 'another'")
    assert "random" in window.text("#facts")
    assert window.page.locator("#log li").count() == 7


def test_a_finished_run_is_replayed(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    window = tab().open(watch(make_run(rounds=30)).url)
    window.until("document.getElementById('status').textContent === 'Finished' && tramfl.state().at === 30")
    assert not window.state("playing")
    window.page.get_by_label("Speed").select_option("0.1")  # slow: the whole run would take a minute and a half
    window.page.get_by_role("button", name="Play").click()
    window.until("tramfl.state().playing && tramfl.state().at > 0 && tramfl.state().at < 30")
    window.page.get_by_role("button", name="Pause").click()
    held = window.state("at")
    window.page.wait_for_timeout(300)
    assert window.state("at") == held
    assert window.page.locator("#log li").count() == int(held) + (held > int(held))
    window.scrub(12)
    assert window.text("#n-round") == "12"
    window.page.get_by_role("button", name="One round on").click()
    window.until("tramfl.state().at === 13")
    window.page.get_by_role("button", name="One round back").click()
    window.until("tramfl.state().at === 12")
    window.page.get_by_label("Speed").select_option("1000")
    window.page.get_by_role("button", name="Play").click()
    window.until("tramfl.state().at === 30 && !tramfl.state().playing")
    assert window.page.get_by_role("button", name="Play").is_visible()
    window.page.get_by_role("button", name="Show round 29").click()
    window.until("tramfl.state().at === 29")


def slow_hop(row: Row, seconds: float = 40.0) -> Row:
    return replace(row, holder=0, node=1, transfer_seconds=seconds, compute_seconds=10.0, idle_seconds=0.0)


SENDING = """[
    document.querySelector('.tram').getAttribute('transform'),
    document.getElementById('now-what').textContent,
    document.getElementById('now-more').textContent,
    document.querySelector('[role=progressbar]').getAttribute('aria-valuenow'),
]"""
TRAM = "document.querySelector('.tram').getAttribute('transform')"


def test_predicted_and_actual_loads_times_and_the_regret_are_shown(
    make_run: MakeRun, watch: Watch, tab: Window
) -> None:
    folder = make_run(rounds=6)
    rows = rows_of(folder)
    number, row = next((i, row) for i, row in enumerate(rows) if row.node not in (None, row.holder))
    nodes = len(row.loads.flops)
    actual = RowLoads((3e12,) * nodes, (4e6,) * nodes)
    rows[number] = replace(row, actual=actual, compute_seconds=row.compute_seconds + 5.0)
    write_rows(folder, rows)
    files = RunFolder(folder)
    summary = files.summary()
    assert summary is not None
    files.conclude(replace(summary, regret=Regret(2.0, 1.5)))
    window = tab().open(watch(folder).url)
    window.until(f"tramfl.state().rows === {len(rows)}")
    [entry] = window.page.locator(f"#log li[data-index='{number}'] small").all_inner_texts()
    assert re.search(r"took [\d.]+ s, predicted [\d.]+ m?s · compute 3.00 TFLOPS, predicted [\d.]+ .?FLOPS", entry)
    assert re.search(r"link 4.00 Mbit/s, predicted [\d.]+ .?bit/s", entry)
    others = window.page.locator("#log li small").all_inner_texts()
    assert not any("compute" in text for text in others if text != entry)
    assert "regret: 2.00 s longer than with loads known exactly" in window.text("#facts")


def test_the_tram_glides_from_site_to_site_while_the_model_is_sent(
    make_run: MakeRun, watch: Watch, tab: Window
) -> None:
    folder = make_run(rounds=2)
    # At 10 x the page shows 5 s of gathering, then a hop of 36 s, which a busy machine sees, too; 1000 x ends it.
    write_rows(folder, [slow_hop(row, seconds=400.0) for row in rows_of(folder)])
    window = tab().open(watch(folder).url)
    window.until("tramfl.state().rows === 2")
    window.page.get_by_label("Speed").select_option("10")
    window.page.get_by_role("button", name="Play").click()
    window.until("document.getElementById('now-what').textContent === 'Node 0 sends the model to node 1.'")
    places: set[str] = set()
    while len(places) < 6:
        place, now, more, done = window.get(SENDING)
        assert now == "Node 0 sends the model to node 1."
        assert "400" in more
        assert 0 <= int(done) <= 100
        places.add(place)
    window.page.get_by_label("Speed").select_option("1000")
    window.until("document.getElementById('now-what').textContent.startsWith('Node 1 train')")


HOLDERS = """[...document.querySelectorAll('#sites tr')]
    .filter(row => row.innerText.includes('the holder')).map(row => row.innerText.split(/\\t|\\n/)[0].trim())"""


def test_at_rest_the_site_that_the_tram_is_at_is_the_holder_and_no_other(
    make_run: MakeRun, watch: Watch, tab: Window
) -> None:
    folder = make_run(rounds=3)
    last = RowLoads((1e12,) * 5, (None, 5e7, 5e7, 5e7, 5e7))
    first, second, third = rows_of(folder)
    # The model is at node 0 after the second round, and so the links of the third are those of node 0.
    write_rows(folder, [first, replace(second, node=0), replace(slow_hop(third), loads=last)])
    window = tab().open(watch(folder).url)
    window.until("document.getElementById('status').textContent === 'Finished' && tramfl.state().at === 3")
    assert "Node 1 trained" in window.text("#now-what")
    assert window.get(HOLDERS) == ["node 1"]
    assert window.text("#link-head") == "Link from node 0", "the links that are known are those of node 0"
    assert window.text("#sites").count("50.0 Mbit/s") == 3
    texts = "[...document.querySelectorAll('#map text')].map(text => text.textContent)"
    assert [text for text in window.get(texts) if text.endswith("the model")] == ["sent the model", "has the model"]
    # A round earlier the next one has shown the links of the site that the model is at.
    window.page.get_by_role("button", name="One round back").click()
    window.until("document.getElementById('link-head').textContent === 'Link from holder'")


def test_rounds_of_a_millisecond_are_replayed_slowly_enough_to_be_seen(
    make_run: MakeRun, watch: Watch, tab: Window
) -> None:
    folder = make_run(rounds=30)
    moments = {"transfer_seconds": 0.0004, "compute_seconds": 0.0006, "idle_seconds": 0.0}
    write_rows(folder, [replace(row, **moments, total_seconds=0.001 * row.round) for row in rows_of(folder)])
    window = tab().open(watch(folder).url)
    window.until("document.getElementById('status').textContent === 'Finished' && tramfl.state().at === 30")
    speed = float(window.page.get_by_label("Speed").input_value())
    assert 0.3 < 0.001 / speed < 10
    assert window.state("speed") == speed
    window.page.get_by_role("button", name="Play").click()
    window.until("tramfl.state().playing && tramfl.state().at > 0 && tramfl.state().at < 30")


def test_with_reduced_motion_the_tram_leaps(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    folder = make_run(rounds=2)
    write_rows(folder, [slow_hop(row) for row in rows_of(folder)])
    window = tab(reduced_motion="reduce").open(watch(folder).url)
    window.until("tramfl.state().rows === 2")
    window.page.get_by_label("Speed").select_option("10")
    window.page.get_by_role("button", name="Play").click()
    places = set()
    for _ in range(60):
        places.add(window.get(TRAM))
        window.page.wait_for_timeout(20)
    assert len(places) <= 3  # at the first stop, between the two, at the second


def test_a_dead_site_looks_dead_and_a_takeover_is_logged(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    folder = make_run(rounds=20)
    write_rows(folder, with_takeover(rows_of(folder), at=12))
    window = tab().open(watch(folder).url)
    window.until("tramfl.state().rows === 20")
    window.scrub(12)
    assert window.page.locator("#map g.dead").count() == 0
    assert window.page.locator("#log li.undone").count() == 0
    window.scrub(13)
    assert window.page.locator("#map g.dead").count() == 1
    assert window.text("#sites tr.dead").startswith(f"node {LOST}")
    assert "does not report" in window.text("#sites tr.dead")
    logged = window.page.locator("#log li").first.inner_text()
    assert f"Node {LOST} no longer reports." in logged
    assert re.search(rf"Takeover: node \d took the model over from node {LOST} \(epoch 2\)\.", logged)
    assert "2 rounds were lost and are done again." in logged
    assert window.page.locator("#log li.undone").count() == 2
    assert f"node {LOST} does not report" in window.get("document.querySelector('#map title').textContent")


def test_hostile_text_in_a_run_file_stays_text(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    resolved = {"labels": [HOSTILE + str(c) for c in range(10)], "held": [[1] * 10] * 5}
    folder = make_run(
        rounds=8, scenario=HOSTILE, policy=HOSTILE, reason=HOSTILE.replace("{", "{{"), resolved=resolved
    )
    window = tab().open(watch(folder).url)
    window.until("tramfl.state().rows === 8")
    window.scrub(4)
    assert window.get("document.querySelectorAll('img, b, iframe').length") == 0
    assert window.get("document.scripts.length") == 1
    assert window.text("h1") == HOSTILE
    assert HOSTILE in window.page.locator("#log li").first.inner_text()
    assert "pwned" in window.page.title()  # as text, and not as what it would have set it to
    assert window.page.title() != "pwned"
    assert not window.get(SIDEWAYS)


def test_a_broken_line_is_reported_and_what_came_before_is_shown(
    make_run: MakeRun, watch: Watch, tab: Window
) -> None:
    folder = make_run(rounds=4)
    with (folder / ROUNDS_FILE).open("ab") as file:
        file.write(b"<script>alert(1)</script>\n")
    window = tab().open(watch(folder).url)
    window.until("!document.getElementById('trouble').hidden && tramfl.state().rows === 4")
    assert "line 5, is not a round's row" in window.text("#trouble")


@pytest.mark.parametrize("nodes", [3, 10])
def test_a_phone_shows_all_without_scrolling_sideways(
    make_run: MakeRun, watch: Watch, tab: Window, nodes: int
) -> None:
    window = tab(390, 844, has_touch=True).open(watch(make_run(rounds=30, nodes=nodes)).url)
    window.until("tramfl.state().rows === 30")
    assert not window.get(SIDEWAYS)
    assert window.page.locator("#map .ring").count() == nodes
    for name in ("Play", "One round back", "One round on"):
        box = window.page.get_by_role("button", name=name).bounding_box()
        assert min(box["width"], box["height"]) >= 24
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_dark_is_dark(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    url = watch(make_run(rounds=10)).url
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    window = tab(color_scheme="dark").open(url)
    assert window.get(brightness) < 150
    window.page.emulate_media(color_scheme="light")
    assert window.get(brightness) > 600


def test_everything_can_be_done_with_the_keyboard(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    window = tab().open(watch(make_run(rounds=50)).url)
    window.until("tramfl.state().rows === 50")
    keys = window.page.keyboard
    keys.press("ArrowLeft")
    window.until("tramfl.state().at === 49")
    keys.press("Space")
    window.until("tramfl.state().playing")
    keys.press("Space")
    window.until("!tramfl.state().playing")
    reached = []
    for _ in range(70):
        keys.press("Tab")
        reached.append(window.get("document.activeElement.id || document.activeElement.className"))
        if reached[-1] == "speed":
            break
    assert reached[0] == "skip"
    assert [name for name in reached if name in ("log-older", "log", "play", "back", "on", "scrub", "speed")] == [
        "log-older", "log", "play", "back", "on", "scrub", "speed",
    ]  # fmt: skip
    keys.press("Shift+Tab")
    keys.press("Home")
    window.until("tramfl.state().at === 0")
    keys.press("ArrowRight")
    window.until("tramfl.state().at === 1")
    assert window.page.get_attribute("#scrub", "aria-valuetext").startswith("1 of 50 rounds")


def test_a_screen_reader_finds_its_way(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    window = tab().open(watch(make_run(rounds=10)).url)
    window.until("tramfl.state().rows === 10")
    page = window.page
    for role in ("main", "banner"):
        assert page.get_by_role(role).count() == 1
    for name in ("Map", "Decisions", "Sites", "Playback", "Figures", "Now"):
        assert page.get_by_role("region", name=name).count() >= 1, name
    assert page.get_by_role("img", name="node 0").count() == 1  # the map in words
    assert page.get_attribute("#said", "aria-live") == "polite"
    window.until("document.getElementById('said').textContent.startsWith('Round 10.')")
    for control in page.locator("button:visible, input:visible, select:visible").all():
        assert control.get_attribute("aria-label") or control.evaluate(
            "c => c.labels?.[0]?.textContent || c.innerText"
        )
    assert page.get_by_role("img", name="Test accuracy").count() == 1
    window.until("document.querySelector('#c-metric figcaption').textContent.includes(' % after ')")


def test_five_thousand_rounds_leave_the_page_small(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    window = tab().open(watch(make_run(rounds=5000, nodes=10)).url)
    window.until("tramfl.state().rows === 5000")
    window.until("document.getElementById('place').textContent === '5,000 / 5,000'")
    assert window.page.locator("#log li").count() == 40
    assert window.get("document.querySelectorAll('*').length") < 1500
    window.page.get_by_role("button", name="Older decisions").click()
    assert window.text("#log-shown") == "4,921–4,960 of 5,000"
    window.page.get_by_role("button", name="Newer decisions").click()
    assert window.text("#log-shown") == "4,961–5,000 of 5,000"


def test_the_page_shows_its_token_with_every_question(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    dashboard = watch(make_run(rounds=3), token="a token & more")
    window = tab().open(dashboard.url)
    window.until("tramfl.state().rows === 3")
    assert all("token" not in urlsplit(url).query for url in window.asked if "/changes" in url)
    stranger = tab()
    assert stranger.page.goto(f"http://127.0.0.1:{dashboard.port}/").status == 403
    assert "needs the token" in stranger.text("body")


class Federation:
    """A made-up federation that says what its sites are doing."""

    def __init__(self) -> None:
        self.sites = [SiteNow(name=name, flops=1e12, held=(5, 5)) for name in ("Oslo", "Lima", "Pune")]
        self.done: list[Row] = []
        self.said = Now(run="f", title="hospital", policy="load-aware", clock="real", labels=("ill", "well"))

    def say(self, holder: int, receiver: int | None = None, **doing: SiteNow) -> None:
        changed = tuple(doing.get(site.name, site) for site in self.sites)
        self.said = replace(self.said, holder=holder, receiver=receiver, round=4, sites=changed)

    def now(self) -> Now:
        return self.said

    def rows(self, after: int) -> list[Row]:
        return self.done[after:]


def test_what_a_federation_says_of_itself_is_shown(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    federation = Federation()
    sending = SiteNow(name="Oslo", doing="sending", progress=0.4, flops=1e12, held=(5, 5))
    federation.say(0, 1, Oslo=sending, Lima=SiteNow(name="Lima", doing="receiving", bandwidth=5e7))
    window = tab().open(watch(federation).url)
    window.until("document.getElementById('now-what').textContent === 'Oslo sends the model to Lima.'")
    assert window.page.get_by_role("progressbar").get_attribute("aria-valuenow") == "40"
    assert window.text("#n-clock-name") == "Time"
    assert "50.0 Mbit/s" in window.text("#sites")
    federation.say(1, None, Lima=SiteNow(name="Lima", doing="training"), Pune=SiteNow(name="Pune", alive=False))
    window.until("document.getElementById('now-what').textContent === 'Lima trains.'")
    assert window.text("#sites tr.dead").startswith("Pune")
    federation.say(1, None, Lima=SiteNow(name="Lima", alive=False))
    window.until("document.getElementById('now-what').textContent === 'Lima holds the model and does not answer.'")
    federation.done = rows_of(
        make_run(rounds=1, nodes=3, reason="Node 1 trains, node 0 comes close; so does node 7.")
    )
    window.until("document.querySelectorAll('#log li').length === 1")
    assert "Lima trains, Oslo comes close; so does node 7." in window.text("#log li")


def test_a_site_is_called_by_its_name_as_its_owner_wrote_it(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    federation = Federation()
    federation.sites = [SiteNow(name=name, flops=1e12, held=(5, 5)) for name in ("ward_b", "node 1", "c")]
    federation.say(0, 2, ward_b=SiteNow(name="ward_b", doing="sending"))
    federation.done = rows_of(make_run(rounds=1, nodes=3, reason="Node 0 trains; node 1 comes close."))
    window = tab().open(watch(federation).url)
    window.until("document.getElementById('now-what').textContent === 'ward_b sends the model to c.'")
    window.until("document.querySelectorAll('#log li').length === 1")
    assert "ward_b trains; node 1 comes close." in window.text("#log li")
    federation.say(1, None, **{"node 1": SiteNow(name="node 1", doing="training")})
    window.until("document.getElementById('now-what').textContent === 'Node 1 trains.'")


def test_on_a_phone_nothing_covers_how_far_a_live_run_is(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    federation = Federation()
    federation.done = rows_of(make_run(rounds=1200, nodes=3))
    federation.say(0, None, Oslo=SiteNow(name="Oslo", doing="training"))
    window = tab(390, 844).open(watch(federation).url)
    window.until("tramfl.state().rows === 1200")
    assert window.page.is_visible("#live")
    found = window.get(
        "(() => { const text = document.createRange(); text.selectNodeContents(document.getElementById('place'));"
        " return [text.getBoundingClientRect().right, document.getElementById('speed').getBoundingClientRect().left];"
        " })()"
    )
    assert found[0] <= found[1]


def test_at_a_hundred_sites_the_tram_stays_inside_the_map(watch: Watch, tab: Window, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = {"partition": {"layout": "dirichlet", "nodes": 100, "min_partition_size": 1}}
    tramfl.simulate("digits-3", rounds=1, train=False, settings=settings, out=folder)
    (row,) = rows_of(folder)
    write_rows(folder, [replace(row, holder=0, node=0, samples=(1, *(0,) * 9))])
    window = tab(1440, 900).open(watch(folder).url)
    window.until("tramfl.state().rows === 1")
    assert window.page.locator("#map .tile").count() == 100
    top = "selector => document.querySelector(selector).getBoundingClientRect().top"
    assert window.page.evaluate(top, "#map .tram") >= window.page.evaluate(top, "#map svg")
    assert "trained 1 sample in round 1." in window.text("body")


def test_a_round_with_a_long_reason_is_three_lines_high_on_a_phone_and_whole_on_a_laptop(
    make_run: MakeRun, tab: Window, tmp_path: Path
) -> None:
    reason = (
        "Node {node} keeps the model and trains 30 samples: 48.3737 samples/s over the whole run, against 34.6358"
    )
    run = make_run(rounds=3, reason=f"{reason} at node 1 and 13.3958 if nobody trained.")
    window = tab(390, 844).open(write_page([load_run(run)], tmp_path / "page.html").as_uri())
    window.until("document.querySelectorAll('#rounds tbody tr').length === 3")
    assert window.get("document.querySelector('#rounds tbody tr').offsetHeight") < 90
    laptop = tab(1440, 900).open((tmp_path / "page.html").as_uri())
    laptop.until("document.querySelectorAll('#rounds tbody tr').length === 3")
    widths = "(box => [box.scrollWidth, box.clientWidth])(document.querySelector('#rounds .scroll'))"
    whole, shown = laptop.get(widths)
    assert whole <= shown, "the reason is cut off"


def test_the_table_of_sites_fits_a_phone_whatever_it_says(make_run: MakeRun, watch: Watch, tab: Window) -> None:
    folder = make_run(rounds=1, nodes=3)
    (row,) = rows_of(folder)
    counts = (1234, *(0,) * 9)
    write_rows(folder, [replace(row, holder=0, node=2, samples=counts, used=counts)])
    window = tab(390, 844, has_touch=True).open(watch(folder).url)
    window.until("tramfl.state().rows === 1")
    assert "sent the model" in window.text("#sites")
    assert "1,234 (100 %)" in window.text("#sites")
    assert not window.get("(e => e.scrollWidth > e.clientWidth)(document.querySelector('.sites .scroll'))")

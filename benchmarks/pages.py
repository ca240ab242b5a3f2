"""How heavy the pages are, and whether the live view stays quick: `python benchmarks/pages.py [--quick]`.

A run of 5,000 rounds and 10 nodes is drawn beside one of 500 in the same browser. Goals: a frame costs at
most twice as much, and the time from opening the page to having drawn the whole run grows no faster than the run.
The accuracies of these runs are made up: what is timed is drawing them. Needs Chromium.
"""

from __future__ import annotations

import argparse
import gzip
import math
import shutil
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace
from playwright.sync_api import Browser, Page, sync_playwright

from tramfl.record import ROUNDS_FILE, RowWriter, read_rows
from tramfl.reporting import load_run, write_page
from tramfl.reporting.dashboard import Dashboard, FolderSource
from tramfl.reporting.dashboard.page import page as live_page
from tramfl.simulation.play import Request, play
from tramfl.simulation.scenarios import scenario_named

SHORT, LONG = 500, 5000
FRAME_GOAL = 2.0
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""Chromium without a screen, as root, and without a word to anybody."""
FRAMES = """(async () => {
  const scrub = document.getElementById('scrub'), costs = [], places = 50;
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  for (let i = 1; i <= places; i++) {
    scrub.value = Math.floor(scrub.max / 2) + 5 * i;
    const before = { ...tramfl.cost };
    scrub.dispatchEvent(new Event('input'));
    await frame();
    costs.push((tramfl.cost.spent - before.spent) / (tramfl.cost.frames - before.frames));
  }
  return costs.sort((a, b) => a - b)[places / 2];
})()"""


def run_of(folder: Path, rounds: int) -> Path:
    """A scheduled run of mnist-10, with accuracies and losses that look like some."""
    scenario = scenario_named("mnist-10")
    budget = replace(scenario.budget, rounds=rounds, seconds=None, samples=None)
    play(Request(scenario=replace(scenario, budget=budget), out=folder, train=False))
    rows = list(read_rows(folder / ROUNDS_FILE))
    (folder / ROUNDS_FILE).unlink()
    writer = RowWriter(folder / ROUNDS_FILE)
    for row in rows:
        score = 0.95 - 0.85 * math.exp(-row.round / 200) + 0.02 * math.sin(row.round)
        loss = 2.5 * (1 - score)
        writer.write(replace(row, test_accuracy=score, test_loss=loss, validation_loss=0.8 * loss))
    writer.close()
    return folder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    dashboard = Dashboard(FolderSource(folder))
    thread = threading.Thread(target=dashboard.serve, daemon=True)
    thread.start()
    try:
        yield dashboard.url
    finally:
        dashboard.stop()
        thread.join()


def until(page: Page, expression: str) -> None:
    for _ in range(2400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise TimeoutError(expression)


def opened(browser: Browser, url: str, rounds: int) -> tuple[Page, float]:
    """The page, and the milliseconds from opening it to having drawn the whole run."""
    page = browser.new_page(viewport={"width": 1280, "height": 1200})
    page.goto(url)
    until(page, f"tramfl.cost.whole !== null && tramfl.state().rows === {rounds}")
    return page, float(page.evaluate("tramfl.cost.whole"))


def frame_milliseconds(page: Page) -> float:
    """What one frame costs with all its charts, map and log: the median over fifty steps from the middle on."""
    return float(page.evaluate(FRAMES))


def measure(browser: Browser, folder: Path, rounds: int, repeats: int) -> tuple[float, float]:
    """Milliseconds to open the page and to draw a frame: the best of some openings, as other work only slows them."""
    wholes, frames = [], []
    with served(folder) as url:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}changes").read()  # the file is read
        for _ in range(repeats):
            page, whole = opened(browser, url, rounds)
            wholes.append(whole)
            frames.append(frame_milliseconds(page))
            page.close()
    return min(wholes), min(frames)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    repeats = 2 if parser.parse_args().quick else 5
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed; scripts/system_parts.sh installs it", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        short, long = (run_of(Path(place) / str(rounds), rounds) for rounds in (SHORT, LONG))
        html, _ = live_page()
        report = write_page([load_run(long)], Path(place) / "report.html").stat().st_size
        print(f"live page: {len(html) / 1e3:,.0f} kB, {len(gzip.compress(html, 3)) / 1e3:,.0f} kB as sent")
        print(f"report of one run of {LONG:,} rounds: {report / 1e3:,.0f} kB, plotly.js included\n")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        first = measure(browser, short, SHORT, repeats)
        second = measure(browser, long, LONG, repeats)
        browser.close()
    print(f"{'10 nodes':34}{SHORT:>8,} rounds{LONG:>8,} rounds{'ratio':>8}")
    names = ("open, read and draw the run (ms)", "draw one frame anew (ms)")
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    for name, a, b, ratio in zip(names, first, second, ratios, strict=True):
        print(f"{name:34}{a:15.1f}{b:15.1f}{ratio:8.2f}")
    met = ratios[0] <= LONG / SHORT and ratios[1] <= FRAME_GOAL
    print(f"\ngoal: ratios of at most {LONG / SHORT:.0f} and {FRAME_GOAL:.0f}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

"""Make the pictures in docs/images: the page of `make demo`, and the live view of a run that is under way.

`python -m scripts.screenshots [report] [watch]` makes those that are named, or all. Needs Chromium.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.pages import FLAGS

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
TRAMFL = (sys.executable, "-c", "from tramfl.cli import main; main()")
ON_ITS_WAY = """(() => {
  const bar = Number(document.getElementById('now-bar').getAttribute('aria-valuenow'));
  const tram = document.querySelector('.tram');
  const far = (document.querySelector('.rail')?.getTotalLength() ?? 0) > 350;
  const found = far && tram?.dataset.phase === 'sending' && bar >= 40 && bar <= 70 && tramfl.state().rows >= 100;
  if (found) window.requestAnimationFrame = () => 0;
  return found;
})()"""
"""The moment worth a picture, which it holds: the model is half-way, and there is something to see in the charts."""


def report(browser: Any) -> None:
    """The report of the demo."""
    source = ROOT / "runs" / "demo" / "report.html"
    if not source.exists():
        raise FileNotFoundError(f"{source} is missing: run make demo first.")
    page = browser.new_page(viewport={"width": 1180, "height": 1640})
    page.goto(source.as_uri())
    page.locator("html[data-ready=true]").wait_for()
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "report.png")


def watch(browser: Any) -> None:
    """The live view of ten sites that train on the digits data."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        options = ("digits-10", "--rounds", "3000", "--target", "0.8,0.985", "--quiet", "--out", str(folder))
        running = subprocess.Popen([*TRAMFL, "run", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (folder / "rounds.jsonl").exists() and running.poll() is None:
            time.sleep(0.1)
        watching = subprocess.Popen([*TRAMFL, "watch", str(folder)], stdout=subprocess.PIPE, text=True)
        try:
            assert watching.stdout is not None
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.goto(watching.stdout.readline().split()[-1])
            for _ in range(6000):
                if page.evaluate(ON_ITS_WAY):
                    break
                page.wait_for_timeout(20)
            page.screenshot(path=IMAGES / "watch.png")
        finally:
            for each in (running, watching):
                each.send_signal(signal.SIGTERM)
                each.wait()


def main() -> int:
    """Take the pictures asked for."""
    pictures = {"report": report, "watch": watch}
    wanted = sys.argv[1:] or list(pictures)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=[*FLAGS, "--hide-scrollbars"])
        try:
            for name in wanted:
                pictures[name](browser)
        except (FileNotFoundError, KeyError) as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

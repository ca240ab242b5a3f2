"""The live view of real sites in a browser: a holder that is killed looks dead until it is back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from tests.conftest import Process
from tests.reporting.dashboard.test_browser import Window, browser, tab  # noqa: F401 - fixtures
from tests.runtime.federations import LocalFederation
from tramfl.config import Budget
from tramfl.simulation.scenarios import scenario_named

NOTE_TAKEOVERS = """(() => {
    const log = document.getElementById('log');
    tramfl.takeovers = 0;
    new MutationObserver(() => { tramfl.takeovers += log.innerText.includes('Takeover: '); })
        .observe(log, { childList: true, subtree: true });
})()"""


DEAD = """(() => {
    const [onMap, inTable] = ['#map g.dead', '#sites tr.dead'].map(found => [...document.querySelectorAll(found)]);
    const names = inTable.map(row => row.innerText.split(/\\s/)[0]);
    return onMap.length === names.length ? names.join() : 'map and table differ';
})()"""


def goes_on(federation: LocalFederation) -> int:
    """Wait until the run has gone on for a few rounds; how often it has been taken over by now."""
    return federation.wait_for_round(federation.record.round + 3).epoch


def test_a_real_federation_is_watched_and_a_killed_holder_looks_dead_until_it_is_back(
    process: Process,
    tab: Window,  # noqa: F811
    tmp_path: Path,
) -> None:
    endless = replace(scenario_named("digits-3"), budget=Budget(rounds=100_000))
    # Playwright has this thread's event loop; what asks the sites needs another.
    with (
        ThreadPoolExecutor(1) as other,
        LocalFederation(tmp_path / "federation", endless, 3, lease_seconds=2.0) as federation,
    ):
        other.submit(federation.begin, "seen").result()
        watching = process("watch", federation.federation)
        assert watching.stdout is not None
        window = tab().open(watching.stdout.readline().split()[-1])
        window.until("document.getElementById('status').textContent === 'Running' && tramfl.state().rows > 3")
        assert [window.text(f"#sites tr:nth-child({n})").split()[0] for n in (1, 2, 3)] == list(federation.names)
        window.until(f"{DEAD} === ''")
        window.get(NOTE_TAKEOVERS)  # rounds are so fast here that an entry of the log does not stay for long
        before = epoch = other.submit(goes_on, federation).result()
        while epoch == before:  # the model may have moved on in the moment of the kill
            lost = other.submit(federation.holder).result()
            federation.kill(lost)
            window.until(f"{DEAD} === '{lost}'")
            epoch = other.submit(goes_on, federation).result()
            federation.start(lost)
            window.until(f"{DEAD} === ''")
        window.until("tramfl.takeovers > 0")

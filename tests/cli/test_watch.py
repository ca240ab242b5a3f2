from __future__ import annotations

import os
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.conftest import Cli, Process, ended, wait_for_rows


@pytest.fixture
def run(cli: Cli, tmp_path: Path) -> Path:
    assert cli("run", "--no-training", "--rounds", 5, "--out", "run", "--quiet").code == 0
    return tmp_path / "run"


def asked(url: str) -> tuple[int, str]:
    # Not through whatever proxy this machine has.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=300) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_run_is_served_until_an_interrupt_which_is_no_failure(run: Path, process: Process) -> None:
    watching = process("watch", "run")
    assert watching.stdout is not None
    line = watching.stdout.readline()
    found = re.fullmatch(r"Watch run at (http://127\.0\.0\.1:\d+/)\n", line)
    assert found is not None, line
    status, page = asked(found[1])
    assert status == 200
    assert "<title>tramfl watch</title>" in page
    assert '"total":5' in asked(found[1] + "changes")[1]
    os.killpg(watching.pid, signal.SIGINT)
    done = ended(watching)
    assert (done.code, done.err) == (0, "")


def test_a_run_under_way_is_served_and_not_disturbed(
    process: Process, slow_rounds: dict[str, str], tmp_path: Path
) -> None:
    running = process("run", "--no-training", "--rounds", 9000, "--out", "run", "--quiet", **slow_rounds)
    wait_for_rows(tmp_path / "run", 1)
    watching = process("watch", "run")
    assert watching.stdout is not None
    url = watching.stdout.readline().split()[-1]
    assert '"status":"running"' in asked(url + "changes")[1]
    os.killpg(running.pid, signal.SIGINT)
    assert ended(running).code == 1
    assert '"status":"interrupted"' in asked(url + "changes?run=x")[1]


def test_another_address_comes_with_a_token(run: Path, process: Process) -> None:
    watching = process("watch", "run", "--host", "0.0.0.0", "--port", 0)
    assert watching.stdout is not None
    url = watching.stdout.readline().split()[-1]
    place, token = url.split("/?token=")
    here = f"http://127.0.0.1:{place.rsplit(':', 1)[1]}/"
    assert asked(here)[0] == 403
    assert asked(f"{here}?token={token}")[0] == 200


@pytest.mark.parametrize("given", [True, False], ids=["in a file", "drawn"])
def test_the_token_is_in_the_arguments_of_no_process(
    run: Path, process: Process, tmp_path: Path, given: bool
) -> None:
    (tmp_path / "secret").write_text("tram-of-thought\n")
    chosen = ("--token-file", "secret") if given else ()
    watching = process("watch", "run", "--host", "0.0.0.0", *chosen)
    assert watching.stdout is not None
    token = watching.stdout.readline().strip().split("/?token=")[1]
    assert (token == "tram-of-thought") == given
    started = psutil.Process(watching.pid)
    arguments = [each.cmdline() for each in (started, *started.children(recursive=True))]
    assert any("watch" in line for line in arguments), arguments
    assert not any(token in argument for line in arguments for argument in line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["nowhere", "no such folder", "--out nowhere"]),
        (["."], ["holds 1 run(s)", "name one of them", "run"]),
        (["empty"], ["empty holds no run", "config.toml"]),
        (["run", "--token-file", "short"], ["at least 8 characters", "--token-file"]),
        (["run", "--token-file", "none"], ["--token-file none", "No such file"]),
        (["run", "--token", "0123456789"], ["No such option", "--token"]),  # every user sees a process's arguments
        (["run", "--host", "a..b"], ["--host a..b", "no such address"]),
        (["run", "--port", "70000"], ["--port", "65535"]),
        ([], ["DIR"]),
    ],
)
def test_bad_input_is_one_sentence(
    cli: Cli, run: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short").write_text("seven77\n")
    cli("watch", *arguments).refused(*words)


def test_a_port_that_is_taken_is_named(cli: Cli, run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cli("watch", "run", "--port", taken.getsockname()[1]).refused("cannot be listened on", "--port")


def test_a_run_with_a_broken_description_is_refused(cli: Cli, run: Path) -> None:
    (run / "config.toml").write_text("name = ")
    cli("watch", "run").refused("config.toml", "not valid TOML")

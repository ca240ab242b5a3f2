from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import PATIENCE
from tests.reporting.dashboard.conftest import Watch, append, rows_of, watching, write_rows
from tramfl.notation import BadInput
from tramfl.reporting.dashboard import Dashboard, FolderSource, server
from tramfl.reporting.dashboard.server import MOST_CONNECTIONS

MakeRun = Callable[..., Path]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.content)


def ask(dashboard: Dashboard, path: str = "/", method: str = "GET", **headers: str) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=300)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    found = Reply(reply.status, {key.lower(): value for key, value in reply.getheaders()}, reply.read())
    connection.close()
    return found


def test_the_page_allows_itself_and_nothing_else(make_run: MakeRun, watch: Watch) -> None:
    page = ask(watch(make_run(rounds=1)))
    assert page.status == 200
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", page.content)
    assert b"innerHTML" not in page.content
    assert b"eval(" not in page.content


def test_a_watcher_gets_each_row_once(make_run: MakeRun, watch: Watch) -> None:
    folder = make_run(rounds=5)
    rows = rows_of(folder)
    write_rows(folder, rows[:3])
    dashboard = watch(folder)
    first = ask(dashboard, "/changes").data
    assert [row[0] for row in first["rows"]] == [1, 2, 3]
    append(folder, rows[3:])
    later = ask(dashboard, f"/changes?run={first['now']['run']}&after=3&version={first['version']}").data
    assert (later["after"], later["total"]) == (3, 5)
    assert [row[0] for row in later["rows"]] == [4, 5]


def test_a_watcher_waits_until_there_is_news(make_run: MakeRun, watch: Watch) -> None:
    folder = make_run(rounds=3)
    rows = rows_of(folder)
    write_rows(folder, rows[:2])
    dashboard = watch(folder)
    first = ask(dashboard, "/changes").data
    later = threading.Timer(0.6, append, (folder, rows[2:]))
    later.start()
    news = ask(dashboard, f"/changes?run={first['now']['run']}&after=2&version={first['version']}").data
    later.join()
    assert [row[0] for row in news["rows"]] in ([], [3])  # the status may change first


def test_a_watcher_of_another_run_begins_anew(make_run: MakeRun, watch: Watch) -> None:
    dashboard = watch(make_run(rounds=2))
    news = ask(dashboard, "/changes?run=another&after=77&version=1").data
    assert (news["after"], len(news["rows"])) == (0, 2)


def test_what_is_large_is_packed(make_run: MakeRun, watch: Watch) -> None:
    reply = ask(watch(make_run(rounds=50)), "/changes", **{"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(reply.content))["rows"]) == 50


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[", ""])
def test_another_name_for_this_address_is_refused(make_run: MakeRun, watch: Watch, host: str) -> None:
    dashboard = watch(make_run(rounds=1))
    for path in ("/", "/changes"):
        assert ask(dashboard, path, Host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_the_names_of_this_machine_are_served(make_run: MakeRun, watch: Watch, host: str) -> None:
    dashboard = watch(make_run(rounds=1))
    assert ask(dashboard, Host=f"{host}:{dashboard.port}").status == 200


def test_an_address_others_can_reach_needs_the_token(make_run: MakeRun, watch: Watch) -> None:
    dashboard = watch(make_run(rounds=1), host="0.0.0.0")
    assert dashboard.token is not None
    assert len(dashboard.token) >= 20
    assert dashboard.url.endswith(f"/?token={dashboard.token}")
    for path in ("/", "/changes"):
        assert ask(dashboard, path).status == 403
        assert ask(dashboard, f"{path}?token=").status == 403
        assert ask(dashboard, f"{path}?token={dashboard.token[:-1]}").status == 403
        assert ask(dashboard, f"{path}?token=%F0%9F%9A%8B").status == 403
        assert ask(dashboard, f"{path}?token={dashboard.token}").status == 200
        assert ask(dashboard, path, Authorization=f"Bearer {dashboard.token}").status == 200
        assert ask(dashboard, path, Authorization="Bearer \xe9").status == 403
    assert dashboard.token.encode() not in ask(dashboard, "/?token=wrong-token").content


def test_a_token_can_be_asked_for_on_this_machine_too(make_run: MakeRun, watch: Watch) -> None:
    dashboard = watch(make_run(rounds=1), token="a b&c=d/ef")
    assert dashboard.url.endswith("/?token=a%20b%26c%3Dd%2Fef")
    assert ask(dashboard).status == 403
    assert ask(dashboard, "/?token=a%20b%26c%3Dd%2Fef").status == 200


def test_a_token_that_can_be_guessed_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadInput, match="at least 8 characters"):
        Dashboard(FolderSource(make_run(rounds=1)), token="1234")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_answered(make_run: MakeRun, watch: Watch, method: str) -> None:
    reply = ask(watch(make_run(rounds=1)), method=method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/config.toml", 404),
        ("/../config.toml", 404),
        ("/changes?after=-1", 400),
        ("/changes?after=x", 400),
        ("/changes?version=1e9", 400),
    ],
)
def test_anything_else_is_refused_in_a_sentence(make_run: MakeRun, watch: Watch, path: str, status: int) -> None:
    reply = ask(watch(make_run(rounds=1)), path)
    assert reply.status == status
    assert reply.content.count(b"\n") == 1
    assert b"Traceback" not in reply.content


def test_a_crowd_is_kept_out_and_does_no_harm(make_run: MakeRun, watch: Watch) -> None:
    dashboard = watch(make_run(rounds=1))
    crowd = [socket.create_connection(("127.0.0.1", dashboard.port)) for _ in range(MOST_CONNECTIONS + 5)]
    for each in crowd:
        each.close()
    until = time.monotonic() + PATIENCE
    while True:
        try:
            assert ask(dashboard).status == 200
            return
        except (http.client.HTTPException, ConnectionError):  # its places are still being cleared
            assert time.monotonic() < until, "no answer after the crowd had gone"
            time.sleep(0.1)


def test_a_port_can_be_taken_again_at_once(make_run: MakeRun) -> None:
    folder = make_run(rounds=1)
    with watching(FolderSource(folder)) as first:
        port = first.port
        with pytest.raises(BadInput, match=f"port {port} cannot be listened on"):
            Dashboard(FolderSource(folder), port=port)
    with watching(FolderSource(folder), port=port) as second:
        assert ask(second).status == 200


@pytest.mark.parametrize(("host", "words"), [("a..b", "--host a..b: no such address"), ("192.0.2.1", "192.0.2.1")])
def test_an_address_that_is_not_here_is_refused(make_run: MakeRun, host: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Dashboard(FolderSource(make_run(rounds=1)), host=host)


def test_clients_that_never_finish_a_request_make_room_for_others(
    make_run: MakeRun, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    dashboard = watch(make_run(rounds=1))
    crowd = [socket.create_connection(("127.0.0.1", dashboard.port), timeout=60) for _ in range(MOST_CONNECTIONS)]
    ended = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            crowd[0].sendall(b"GET / HTTP/1.1\r\n")
            while not ended.wait(0.05):
                crowd[0].sendall(b"X: y\r\n")

    slow = threading.Thread(target=trickle)
    slow.start()
    for each in crowd[1:]:
        assert each.recv(1) == b""
    with suppress(ConnectionResetError):
        assert crowd[0].recv(1) == b""
    ended.set()
    slow.join()
    for each in crowd:
        each.close()
    monkeypatch.setattr(server, "REQUEST_SECONDS", 300.0)
    assert ask(dashboard).status == 200

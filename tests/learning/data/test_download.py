"""The downloader against a server on this machine that can resume, refuse, cut and lie."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tramfl.learning.data.download import DownloadFailed, download

CONTENT = bytes(i * i % 251 for i in range(1_000_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Mirror(ThreadingHTTPServer):
    """Serves CONTENT at /file; other paths misbehave."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.ranges: list[str | None] = []
        self.cuts = 0
        self.resumes = True

    def url(self, path: str = "file") -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Answer(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers["Range"])
        if self.path == "/missing":
            self.send_error(404)
            return
        content = CONTENT if self.path == "/file" else CONTENT[::-1]
        start = 0
        if self.headers["Range"] and self.server.resumes:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content)
        if self.server.cuts:
            self.server.cuts -= 1
            end = start + (len(content) - start) // 2
        self.wfile.write(content[start:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_arrives_whole_and_reports_its_progress(mirror: Mirror, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = tmp_path / "new" / "file"
    download([mirror.url()], target, sha256=SHA256, report=lambda *step: seen.append(step))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert list(target.parent.iterdir()) == [target]


def test_a_part_left_behind_is_continued_not_fetched_again(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:700_000])
    download([mirror.url()], tmp_path / "file", sha256=SHA256)
    assert mirror.ranges == ["bytes=700000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_complete_part_is_taken_as_it_is(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    download([mirror.url()], tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_of_another_version_is_thrown_away(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"old" * 1000)
    download([mirror.url()], tmp_path / "file", sha256=SHA256)
    assert mirror.ranges == ["bytes=3000-", None]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_that_cannot_resume_starts_the_file_over(mirror: Mirror, tmp_path: Path) -> None:
    mirror.resumes = False
    (tmp_path / "file.part").write_bytes(CONTENT[:300_000])
    download([mirror.url()], tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_cut_connection_is_taken_up_where_it_ended(mirror: Mirror, tmp_path: Path) -> None:
    mirror.cuts = 2
    download([mirror.url()], tmp_path / "file", sha256=SHA256)
    assert mirror.ranges == [None, "bytes=500000-", "bytes=750000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_no_file(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"/lie: .*wrong checksum"):
        download([mirror.url("lie")], tmp_path / "file", sha256=SHA256)
    assert list(tmp_path.iterdir()) == []


def test_a_second_address_serves_when_the_first_does_not(mirror: Mirror, tmp_path: Path) -> None:
    download([mirror.url("missing"), mirror.url("lie"), mirror.url()], tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_missing_file_is_reported_with_its_address(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"/missing: HTTP 404"):
        download([mirror.url("missing")], tmp_path / "file", sha256=SHA256)
    assert len(mirror.ranges) == 1


def test_what_arrived_before_the_network_went_is_kept(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:100])
    url = mirror.url()
    mirror.shutdown()
    mirror.server_close()
    with pytest.raises(DownloadFailed, match="refused"):
        download([url], tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:100]


def test_two_downloads_of_one_file_take_turns(mirror: Mirror, tmp_path: Path) -> None:
    errors: list[Exception] = []

    def fetch() -> None:
        try:
            download([mirror.url()], tmp_path / "file", sha256=SHA256)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]

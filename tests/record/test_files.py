"""Files are replaced as a whole: a reader sees the old content or the new."""

from __future__ import annotations

from pathlib import Path

from tramfl.record import write_atomically


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new, and longer")
    assert path.read_bytes() == b"new, and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_who_opened_the_old_file_keeps_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old" * 10_000)
    with path.open("rb") as reader:
        write_atomically(path, b"new")
        assert reader.read() == b"old" * 10_000


def test_a_write_that_a_crash_cut_short_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")
    (tmp_path / "summary.json.part").write_bytes(b"ne")  # what such a crash leaves behind
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]

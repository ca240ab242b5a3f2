"""A site's state folder: locked by one process, and of a format that this version reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tramfl.notation import BadInput
from tramfl.runtime.site import check_format
from tramfl.runtime.site.life import FORMAT, Incarnation, alone_in


def test_a_new_state_folder_says_its_format(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert check_format(folder) is None
    with alone_in(folder, "a"):
        assert (folder / "format").read_text() == f"{FORMAT}\n"
    assert check_format(folder) == FORMAT


def test_a_state_folder_from_before_there_were_formats_is_read_and_numbered(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "incarnation").write_text("7")
    (tmp_path / "history.json").write_text("{}")
    with alone_in(tmp_path, "a"):
        assert Incarnation(tmp_path).number == 8
    assert check_format(tmp_path) == 1
    assert (tmp_path / "history.json").read_text() == "{}"


def test_a_state_folder_of_a_newer_format_is_refused_in_one_sentence_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "format").write_text(f"{FORMAT + 1}\n")
    (tmp_path / "incarnation").write_text("7")
    with (
        pytest.raises(BadInput, match=rf"is of format {FORMAT + 1}, and tramfl .* reads formats up to {FORMAT}; use"),
        alone_in(tmp_path, "a"),
    ):
        raise AssertionError("a site went to work in a folder that it cannot read")
    assert (tmp_path / "format").read_text() == f"{FORMAT + 1}\n"
    assert (tmp_path / "incarnation").read_text() == "7"


@pytest.mark.parametrize("content", [b"", b"one", b"0", b"-1", b"1.5", b"\xff\xfe", "²".encode()])
def test_a_format_that_is_no_number_is_refused_by_its_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "format").write_bytes(content)
    with pytest.raises(BadInput, match=r"format has .*; it must have a whole number from 1"):
        check_format(tmp_path)


def test_a_second_process_of_a_site_is_refused(tmp_path: Path) -> None:
    with (
        alone_in(tmp_path, "a"),
        pytest.raises(BadInput, match="another process of site 'a'"),
        alone_in(tmp_path, "a"),
    ):
        raise AssertionError("two processes work in one folder")


def test_no_other_user_may_read_a_state_folder(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    with alone_in(folder, "a"):
        assert folder.stat().st_mode & 0o777 == 0o700

"""The generated reference is whole: every key has a meaning, every command a section; a dead link is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import Struct

from scripts.docs import check_site, commands, settings
from tramfl.config import Scenario
from tramfl.explanations import explanations


@pytest.mark.parametrize("kind", [kind for _, _, kind in settings.FILES], ids=lambda kind: kind.__name__)
def test_every_key_of_a_settings_file_has_a_sentence_that_says_what_it_means(kind: type[Struct]) -> None:
    assert settings.undocumented(kind) == []


def test_the_reference_of_settings_has_type_limits_default_and_meaning_of_a_key() -> None:
    (row,) = (line for line in settings.reference().splitlines() if "`partition.validation_share`" in line)
    _, key, meaning, kind, default, _ = map(str.strip, row.split("|"))
    assert (key, kind, default) == ("`partition.validation_share`", "number ≥ 0, < 1", "`0.1`")
    assert meaning.endswith(".")
    assert explanations(Scenario)["budget"].startswith("When a run ends")


def test_the_reference_of_settings_names_types_in_the_words_of_toml() -> None:
    rows = [line.split("|") for line in settings.reference().splitlines() if line.startswith("| `")]
    kinds = {row[1].strip().strip("`"): row[3].strip() for row in rows}
    assert kinds["balance"] == "`uniform`, `population` or table of: number > 0"
    assert not [kind for kind in kinds.values() if re.search("dict|tuple|Literal|None|Path|Struct", kind)]


def test_the_reference_of_commands_has_every_command_and_no_hidden_option() -> None:
    page = commands.reference()
    for name in ("run", "scenarios", "scenarios show", "cert renew", "pull"):
        assert f"\n## tramfl {name}\n" in page
    assert "--with-parent" not in page
    assert "[bold]" not in page


def test_a_link_to_no_file_or_no_anchor_and_a_part_from_elsewhere_are_each_reported(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">fine</a> <a href="b.html#gone">x</a> <a href="c.html">x</a>'
        ' <a href="https://example.org">fine</a> <script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')
    assert sorted(check_site.wrong_in_site(tmp_path)) == [
        "a.html: b.html#gone leads to no anchor",
        "a.html: c.html leads to no file",
        "a.html: https://example.org/x.js is fetched from elsewhere",
    ]


def test_the_pages_at_the_root_link_only_to_files_that_are_there() -> None:
    assert list(check_site.wrong_at_root()) == []

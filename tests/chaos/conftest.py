"""`make test` plays the quick part; `make chaos` plays everything (`pytest tests/chaos --everything`).

`make chaos CODEC=int4` plays everything with models that travel in four bits a weight (`--codec int4`).
"""

from __future__ import annotations

from typing import get_args

import pytest

from tests.chaos import scenes
from tramfl.config import Codec


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--everything", action="store_true", help="all faults on all registers, not the quick part alone"
    )
    parser.addoption("--codec", choices=get_args(Codec), default="float32", help="how models travel")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: also part of `make test`")
    scenes.codec = config.getoption("--codec", default="float32")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Without the option, as when all tests are run, pytest reads this file too late to know that there is one.
    if config.getoption("--everything", default=False):
        return
    left_out = [i for i in items if i.path.is_relative_to(config.rootpath / "tests/chaos") and not _quick(i)]
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)


def _quick(item: pytest.Item) -> bool:
    return item.get_closest_marker("quick") is not None

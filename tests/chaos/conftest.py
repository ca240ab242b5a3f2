"""`make test` plays the quick part; `make chaos` plays everything (`pytest tests/chaos --everything`)."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--everything", action="store_true", help="all faults on all registers, not the quick part alone"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: also part of `make test`")


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

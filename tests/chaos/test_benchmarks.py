"""Benchmarks run to their end: who wants their figures should not be the first to see that one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system_parts import TIED

ROOT = Path(__file__).parents[2]
GOAL_MISSED = 1


@pytest.mark.parametrize("name", ["predictors", "simulation", "solvers", "training", "transfer"])
def test_a_benchmark_prints_its_figures(name: str) -> None:
    words = (*TIED, sys.executable, "-m", f"benchmarks.{name}", "--quick")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, GOAL_MISSED)
    assert "goal" in done.stdout.lower()

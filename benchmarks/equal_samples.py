"""Accuracy after equal samples, from runs that are there: `python -m benchmarks.equal_samples FOLDER [--samples N]`.

FOLDER is what `tramfl reproduce --methods` or `tramfl compare --methods` wrote: SCENARIO/METHOD-SEED. For each
scenario and method: points of test accuracy above load-aware's on the same seeds, as the mean over the seeds of the
mean of the last ten tests before N samples. Without --samples, N is the largest multiple of 5,000 that every run of
the two has trained: a run ends with a test that went well, and that one should not count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from tramfl.reporting.runs import Run, load_run

REFERENCE = "load-aware"
STEP = 5_000
LAST_TESTS = 10


def accuracy(run: Run, samples: int) -> float:
    """Of the last tests before this number of samples, in percent."""
    tests = [row.test_accuracy for row in run.rows if row.test_accuracy is not None and sum(row.used) <= samples]
    return 100 * fmean(tests[-LAST_TESTS:])


def runs_in(folder: Path) -> dict[str, dict[int, Run]]:
    """The finished runs of a scenario, by method and seed."""
    found: dict[str, dict[int, Run]] = {}
    for summary in sorted(folder.glob("*/summary.json")):
        method, _, seed = summary.parent.name.rpartition("-")
        found.setdefault(method, {})[int(seed)] = load_run(summary.parent)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int)
    chosen = parser.parse_args()
    print("| scenario | method | seeds | samples | accuracy | load-aware | points |\n|---|---|---|---|---|---|---|")
    for folder in sorted(path for path in chosen.folder.iterdir() if any(path.glob(f"{REFERENCE}-*/summary.json"))):
        runs = runs_in(folder)
        for method in sorted(runs.keys() - {REFERENCE}):
            seeds = sorted(runs[method].keys() & runs[REFERENCE].keys())
            if not seeds:
                continue
            pairs = [(runs[method][seed], runs[REFERENCE][seed]) for seed in seeds]
            least = min(sum(run.rows[-1].used) for pair in pairs for run in pair)
            samples = chosen.samples or least // STEP * STEP
            ours, theirs = (fmean(accuracy(pair[place], samples) for pair in pairs) for place in (0, 1))
            print(f"| {folder.name} | {method} | {', '.join(map(str, seeds))} | {samples:,}", end="")
            print(f" | {ours:.1f} % | {theirs:.1f} % | {ours - theirs:+.1f} |")


if __name__ == "__main__":
    main()

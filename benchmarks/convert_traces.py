"""Make a trace for `loads.kind = "trace"` of recorded bandwidths and processor use.

    python benchmarks/convert_traces.py --bandwidth FILE --cpu FILE --nodes 10 --out trace.csv

--bandwidth: a CSV of link,seconds,mbit_per_second; a share is the value over the 95th percentile of that link's
values, at most 1. --cpu: a CSV of node,seconds,cpu_used_percent; a share is what is left of 100 %, and a day is
played in ten minutes (--cpu-speed 144). Shares are at least 0.005 for links and 0.01 for nodes, as in the paper.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path


def series(path: Path, key: str, value: str) -> list[list[tuple[float, float]]]:
    """The recorded series, in the file's order."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            found[line[key]].append((float(line["seconds"]), float(line[value])))
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--bandwidth", type=Path, required=True)
    parser.add_argument("--cpu", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--cpu-speed", type=float, default=144.0, help="recorded seconds in one played second")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the trace")
    parser.add_argument("--out", type=Path, default=Path("trace.csv"))
    options = parser.parse_args()
    cpu = series(options.cpu, "node", "cpu_used_percent")
    links = series(options.bandwidth, "link", "mbit_per_second")
    lines: list[tuple[float, str, float]] = []
    for node in range(options.nodes):
        for second, used in cpu[node % len(cpu)]:
            lines.append((second / options.cpu_speed, str(node), max(0.01, 1 - used / 100)))
    pairs = [(i, j) for i in range(options.nodes) for j in range(i + 1, options.nodes)]
    for number, (one, other) in enumerate(pairs):
        recorded = links[number % len(links)]
        values = sorted(value for _, value in recorded)
        usual = values[int(0.95 * (len(values) - 1))]
        for second, value in recorded:
            lines.append((second, f"{one}-{other}", min(1.0, max(0.005, value / usual))))
    last: dict[str, float] = {}
    with options.out.open("w", encoding="utf-8") as file:
        file.write("seconds,node or link,share\n")
        for exact, place, share in lines:
            second = round(exact, 2)
            if second <= options.seconds and second > last.get(place, -1.0):
                last[place] = second
                file.write(f"{second:.2f},{place},{share:.4f}\n")
    print(f"{options.out}: {options.nodes} nodes, {len(pairs)} links")


if __name__ == "__main__":
    main()

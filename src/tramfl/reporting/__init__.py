"""Reports and figures of runs, from their records alone.

page         one HTML page of runs; comparing_plots, run_plots: its figures, of several policies and of one run
figures      pictures, as are paper and regimes; reproduction: beside the paper's numbers
runs         reads runs; summary, verdict, intervals: tables and what they come to; merging: runs of several machines
dashboard/   the live view of `tramfl watch`

Plotly and Matplotlib are optional: they are looked for when a page or a figure is made, not before.
"""

from tramfl.reporting.figures import write_figures
from tramfl.reporting.page import write_page
from tramfl.reporting.runs import Run, load_run, load_runs
from tramfl.reporting.summary import (
    Difference,
    TargetTime,
    as_data,
    as_table,
    differences,
    differences_table,
    times_to_target,
)
from tramfl.reporting.verdict import verdict

__all__ = [
    "Difference",
    "Run",
    "TargetTime",
    "as_data",
    "as_table",
    "differences",
    "differences_table",
    "load_run",
    "load_runs",
    "times_to_target",
    "verdict",
    "write_figures",
    "write_page",
]

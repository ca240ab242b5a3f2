"""A notebook as a researcher has it: cells run in a real Jupyter kernel, and what they display is looked at."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = (
    'import tramfl\nresult = tramfl.simulate("digits-3", rounds=40, targets=0.3, seed=1)\nresult',
    "result.dataframe()",
    'tramfl.compare("digits-3", policies=["load-aware", "random"], seeds=1, train=False, rounds=3, jobs=1)',
    'tramfl.simulate("digits-3", rounds=0)',
)
OUTPUT_WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> NotebookClient:
    """The notebook after its cells have run, the last of which fails."""
    home = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(home / name.lower()))
        cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
        client = NotebookClient(
            nbformat.v4.new_notebook(cells=cells),
            startup_timeout=600,
            timeout=600,
            kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": str(home)}},
        )
        client.execute()
    return client


def value(client: NotebookClient, cell: int) -> dict[str, str]:
    """What a cell's last line displays, by kind."""
    (found,) = [out["data"] for out in client.nb.cells[cell].outputs if out["output_type"] == "execute_result"]
    return dict(found)


def bar(client: NotebookClient, cell: int) -> str:
    """The last state of the one bar that a cell showed."""
    (shown,) = [out["data"] for out in client.nb.cells[cell].outputs if OUTPUT_WIDGET in out.get("data", {})]
    widget: Any = client.widget_state[shown[OUTPUT_WIDGET]["model_id"]]
    return str(widget["outputs"][-1]["data"]["text/plain"])


def test_a_result_displays_its_table_and_its_curve(notebook: NotebookClient) -> None:
    shown = value(notebook, 0)
    assert shown["text/plain"].startswith("Result(digits-3, load-aware, seed 1, finished: ")
    assert "<td>to 30 %</td><td>first reached after " in shown["text/html"]
    assert shown["text/html"].count("<svg") == 1


def test_a_running_simulation_and_a_comparison_show_a_bar(notebook: NotebookClient) -> None:
    assert ", accuracy" in bar(notebook, 0)
    assert "100%" in bar(notebook, 0), "a run that ends at its target has not used up its rounds"
    assert "runs" in bar(notebook, 2)
    assert "100%" in bar(notebook, 2)


def test_the_rounds_of_a_result_are_a_data_frame(notebook: NotebookClient) -> None:
    shown = value(notebook, 1)["text/html"]
    assert "<th>transfer_seconds</th>" in shown
    assert re.search(r"\d rows × \d+ columns", shown)


def test_a_comparison_displays_its_verdict_and_its_curves(notebook: NotebookClient) -> None:
    shown = value(notebook, 2)
    assert shown["text/plain"].startswith("Comparison of 2 runs: Scheduling only, no model was trained: ")
    assert shown["text/html"].startswith("<p>Scheduling only, no model was trained: ")
    assert shown["text/html"].count("<svg") == 1


def test_bad_input_ends_in_one_sentence(notebook: NotebookClient) -> None:
    (wrong,) = [out for out in notebook.nb.cells[3].outputs if out["output_type"] == "error"]
    assert wrong["ename"] == "BadInput"
    assert wrong["evalue"] == "settings: key `budget.rounds`: expected a whole number >= 1."

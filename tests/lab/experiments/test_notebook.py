"""The notebook of the examples: it runs from its first cell to its last, and is kept without what its cells printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.plans import small_plan_file

NOTEBOOK = Path(__file__).resolve().parents[3] / "examples" / "experiments.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def test_it_has_no_outputs(cells: list[dict[str, Any]]) -> None:
    assert [cell["id"] for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.needs("matplotlib", "pandas")
def test_it_runs(cells: list[dict[str, Any]], tmp_path: Path) -> None:
    """With fewer steps and seeds, and otherwise as it stands."""
    text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text, shortened = re.subn(r'steps(=|": )\d+', r"steps\g<1>2", text)
    text = re.sub(r'warm_up(=|": )\d+', r"warm_up\g<1>0", text)
    assert shortened == 2
    assert "range(1, 6)" in text
    text = text.replace("range(1, 6)", "range(1, 3)")
    done = subprocess.run(
        [sys.executable, "-"], input=text, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (paper,) = tmp_path.glob("runs/*/paper.pdf")
    assert paper.read_bytes().startswith(b"%PDF")


SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from sa_atp import experiment
from sa_atp.lab.experiments import progress

class ZMQInteractiveShell(InteractiveShell):  # called as that of a notebook, which rich looks for
    kernel = None

assert not progress.in_notebook()
shell = ZMQInteractiveShell.instance()
assert not progress.in_notebook()
shell.kernel = object()
assert progress.in_notebook()
with capture_output() as shown:
    result = experiment.run(sys.argv[1], backend="sim", draw=False)
texts = [output.data["text/plain"] for output in shown.outputs]
assert "starting" in texts[0], texts
assert any(text.endswith("atp, repetition 1 of 1") for text in texts), texts
assert texts[-1].endswith("done"), texts
assert (shown.stdout, shown.stderr) == ("", "")
with capture_output() as shown:
    assert "Iteration time" in str(result)
assert not shown.outputs
"""


@pytest.mark.needs("p4runtime_sh")  # which brings IPython
def test_progress_in_a_notebook(tmp_path: Path) -> None:
    plan = str(small_plan_file(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", SHELL, plan], cwd=tmp_path, env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

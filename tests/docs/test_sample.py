"""README's sample of the demo's output: words, rows and columns are those that the demo prints."""

import io
import re
from dataclasses import replace

from lab.report import synthetic
from rich.console import Console

from docs.blocks import ROOT
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import with_lanes
from sa_atp.lab.report.table import print_table
from sa_atp.lab.report.text import NBSP

NUMBER = re.compile(r"\d+(?: \d{3})*(?:\.\d+)?")


def shape(text: str) -> list[str]:
    """The words of a text, with # for numbers and "s" for milliseconds, which depend on the run."""
    plain = NUMBER.sub("#", text.replace(NBSP, " "))
    return re.sub(r"# ms\b", "# s", plain).split()


def sample() -> str:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"It ends like this:\n\n```\n(.*?)```\n\nand with the paths", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_sample_of_the_demo_has_the_shape_of_what_it_prints() -> None:
    plan = with_lanes(plan_files.load(ROOT / "topologies" / "demo.toml"))
    printed = io.StringIO()
    made = synthetic.result(plan)
    made = replace(made, runs=[replace(run, shares_memory=plan.switch.shared_memory) for run in made.runs])
    print_table(made, Console(file=printed, width=80))
    assert shape(sample()) == shape(printed.getvalue())
    assert max(map(len, sample().splitlines())) <= 80

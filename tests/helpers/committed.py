"""What is committed beside the code, and made anew by tests."""

import json
from collections.abc import Sequence
from pathlib import Path

from sa_atp.lab.bench.help import HelpRow
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def help_rows() -> list[HelpRow]:
    """Of docs/help-table.json."""
    return [HelpRow(**row) for row in json.loads((DOCS / "help-table.json").read_text())["rows"]]


def help_page() -> str:
    """docs/help-table.md."""
    return (DOCS / "help-table.md").read_text()


def flow_page() -> str:
    """docs/flow-model.md."""
    return (DOCS / "flow-model.md").read_text()


def plan(name: str, changes: Sequence[str]) -> Plan:
    """A plan of topologies/. Args: changes: `table.key=value` each."""
    return plan_files.load(ROOT / "topologies" / f"{name}.toml", changes)

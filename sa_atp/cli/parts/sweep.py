"""Prints the results of a sweep."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from sa_atp.basics import terminal
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report.text import digits, duration, policy_name


def print_numbers(plan: Plan, numbers: dict[str, Any], folder: Path, console: Console | None = None) -> None:
    """Prints a row for each point and a column for each policy."""
    from sa_atp.lab.report.sweep import QUANTITIES, label, missing

    console = console or terminal.console()
    is_time = QUANTITIES[plan.sweep.figure][0].is_time
    table = terminal.table([numbers["key"]], map(policy_name, plan.run.policies))
    for point in numbers["points"]:
        cells = [point["policies"].get(policy, {}) for policy in plan.run.policies]
        table.add_row(label(point["value"], numbers["key"]), *(_cell(cell, is_time) for cell in cells))
    if "all" in numbers:
        table.add_row("all", *(_cell(numbers["all"].get(policy, {}), is_time) for policy in plan.run.policies))
    console.print(numbers["quantity"].capitalize(), style="bold")
    terminal.print_table(console, table)
    for line in missing(numbers):
        console.print(line)
    console.print(f"Figure:   {folder / 'sweep.png'}")
    console.print(f"Data:     {folder / 'sweep.json'}; each point: {folder / 'points'}/")


def _cell(found: dict[str, Any], is_time: bool) -> str:
    """A mean and half of its 95 % interval."""
    if found.get("mean") is None:
        return "–"
    write = duration if is_time else digits
    half = f" ± {write((found['ci95'][1] - found['ci95'][0]) / 2)}" if found["ci95"] else ""
    return f"{write(found['mean'])}{half}"


def wrong_sums(numbers: dict[str, Any]) -> int:
    return sum(p["sums_wrong"] for point in numbers["points"] for p in point["policies"].values())


def as_json(numbers: dict[str, Any], folder: Path) -> str:
    return json.dumps({**numbers, "folder": str(folder)})

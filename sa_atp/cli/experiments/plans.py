"""`sa-atp plans`: the project's own plans, and the reference of all keys."""

import argparse
import json
import re
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plans",
        help="list the project's own plans",
        description="Lists the plans that come with the project: names for `sa-atp run`, the backend that each is for, and "
        "what it shows.",
    )
    parser.add_argument("--reference", action="store_true",
                        help="print all keys of plans, policies, figures, columns (docs/reference.md)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the list as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.reference:
        from sa_atp.lab.experiments import reference

        print(reference.document(), end="")
        return 0
    from sa_atp import experiment
    from sa_atp.lab.plans import plan_files
    from sa_atp.switches import artefacts

    places = artefacts.plan_files()
    found = []
    for name, shows in experiment.plans().items():
        plan = plan_files.load(places[name])
        of = {"backend": plan.run.backend, "policies": list(plan.run.policies), "sweep": plan.sweep.key or None}
        found.append({"name": name, "path": str(places[name]), "shows": shows, **of})
    if options.json:
        print(json.dumps({"plans": found}))
    else:
        _print(found)
    return 0


def _print(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from sa_atp.basics import terminal

    table = Table(box=None, pad_edge=False)
    table.add_column("plan", no_wrap=True)
    table.add_column("backend")
    table.add_column("shows")
    for each in found:
        table.add_row(each["name"], each["backend"], _first_sentence(each["shows"]))
    console = terminal.console()
    terminal.print_table(console, table)
    console.print(
        "`sa-atp run NAME` runs one; those for mininet need root, or another --backend where that can run them."
    )


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?!])\s", text, maxsplit=1)[0]

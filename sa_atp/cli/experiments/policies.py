"""`sa-atp policies`: the policies that plans may compare, and their own keys."""

import argparse
import dataclasses
import json
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "policies",
        help="list the policies that plans may compare",
        description="Lists the policies that run.policies of a plan may name: what each does, which backends run it, and "
        "its own keys of a plan. docs/policies.md explains them.",
    )
    parser.add_argument("--json", action="store_true", help="print the list as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp import experiment
    from sa_atp.lab import policies
    from sa_atp.lab.plans import keys

    found = []
    for name, summary in experiment.policies().items():
        policy = policies.find(name)
        own = [dataclasses.asdict(key) for table in policies.tables_of((name,)) for key in keys.keys_of(table)]
        of = {
            "title": policy.title,
            "family": policy.family.value,
            "backends": policy.backends,
            "source": policy.source,
        }
        found.append({"name": name, "summary": summary, **of, "modules": policy.modules, "keys": own})
    if options.json:
        print(json.dumps({"policies": found}))
    else:
        _print(found)
    return 0


def _print(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from sa_atp.basics import terminal

    table = Table(box=None, pad_edge=False, leading=1)
    table.add_column("policy", no_wrap=True)
    table.add_column("backends")
    table.add_column("own keys", no_wrap=True)
    table.add_column("what it does")
    for each in found:
        own = "\n".join(key["key"] for key in each["keys"]) or "–"
        table.add_row(each["name"], "\n".join(each["backends"]), own, each["summary"])
    terminal.print_table(terminal.console(), table)

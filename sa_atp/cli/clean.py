"""`sa-atp clean`: removes what crashed Mininet runs left."""

import argparse
import dataclasses
import json
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "clean",
        help="remove what crashed Mininet runs left",
        description="Removes processes, control groups and folders of Mininet runs that are over. Runs that still run "
        "keep theirs.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab.backends.mininet import cleaning

    found = cleaning.clean(dry_run=options.dry_run)
    if options.json:
        print(json.dumps({"dry_run": options.dry_run, "found": [dataclasses.asdict(each) for each in found]}))
        return 0
    for each in found:
        print(f"{'would remove' if options.dry_run else 'removed'} {each.kind} {each.name}")
    if not found:
        print("nothing was left behind")
    return 0

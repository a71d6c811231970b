"""`sa-atp compare`: finished runs side by side."""

import argparse
import json
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="show finished runs side by side",
        description="Shows finished runs side by side: how their plans and machines differ, and the main numbers of each "
        "policy. Times are compared with those of the first run.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR",
                        help="two or more folders that `sa-atp run --out DIR` has written")  # fmt: skip
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one page, with figures side by side")
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")
    parser.set_defaults(run=run, waits="reading the runs")


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab.experiments import compare, compare_output

    runs = compare.load_runs(options.folders)
    page = compare_output.write_page(runs, options.html) if options.html is not None else None
    if options.json:
        print(json.dumps({**compare.as_json(runs), "page": None if page is None else str(page)}))
    else:
        compare_output.print_comparison(runs)
        if page is not None:
            print(f"Page:     {page}")
    return 0

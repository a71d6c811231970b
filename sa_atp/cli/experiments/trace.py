"""`sa-atp trace`: makes a trace of stragglers from the operations of a real job."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "trace",
        help="make a trace of stragglers from the operations of a real job",
        description="Reads a Parquet file in the format of ByteDance's StragglerAnalysis (OSDI 2025), a row for each "
        "operation of each rank and step, and writes how slow each data-parallel rank computed in each step: a trace for "
        "straggler.trace of a plan.",
    )
    parser.add_argument("file", type=Path, metavar="OPERATIONS.parquet", help="the operations of a job")
    parser.add_argument("--out", type=Path, required=True, metavar="TRACE.csv", help="file for the trace")
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object")
    parser.set_defaults(run=run, waits="reading the operations")


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab.plans import operation_traces
    from sa_atp.lab.report.files import write_text
    from sa_atp.lab.report.text import duration, factor

    found = operation_traces.read(options.file)
    write_text(options.out, found.as_csv())
    if options.json:
        numbers = {name: value for name, value in asdict(found).items() if name != "rows"}
        print(json.dumps({**numbers, "rows": len(found.rows), "file": str(options.out)}))
        return 0
    print(
        f"{found.steps} steps of {found.workers} data-parallel ranks, {duration(found.step_s)} each. A rank typically "
        f"computes for {duration(found.typical_s)}; the slowest of a step for {factor(found.slowest_over_mean)} the mean."
    )
    print(f"Trace:    {options.out}: straggler.trace of a plan with topology.workers = {found.workers}")
    return 0

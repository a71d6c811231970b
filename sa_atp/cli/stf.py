"""`sa-atp stf`: runs a packet test."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.errors import UserError
from sa_atp.words import plural

if TYPE_CHECKING:
    from sa_atp.softswitch.stf.runner import Result


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "stf",
        help="run a packet test on a P4 switch",
        description="Runs a packet test in p4c's STF format: packets in, packets out, table entries, counters.",
    )
    parser.add_argument("program", type=Path, metavar="PROGRAM.json", help="BMv2 JSON, as p4c-bm2-ss writes it")
    parser.add_argument("test", type=Path, metavar="TEST.stf")
    parser.add_argument("--target", choices=("embedded", "bmv2"), default="embedded", help="default: embedded")
    parser.add_argument("--plain", action="store_true",
                        help="embedded: run the translated program as plain Python, to step through it")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.softswitch.stf import grammar, runner
    from sa_atp.softswitch.stf.names import Names

    if options.plain and options.target != "embedded":
        raise UserError("--plain is about the embedded target: drop it, or choose --target embedded")
    test = grammar.read(options.test)
    names = Names.from_file(options.program)
    if options.target == "bmv2":
        from sa_atp.testbed import bmv2_stf

        with bmv2_stf.running(options.program, names) as switch:
            result = runner.run(test, names, switch)
    else:
        from sa_atp.folders import cache_folder
        from sa_atp.softswitch.pipeline import Pipeline
        from sa_atp.softswitch.stf.embedded import EmbeddedTarget

        pipeline = Pipeline.from_file(options.program, compiled=not options.plain, cache=cache_folder())
        result = runner.run(test, names, EmbeddedTarget(pipeline))
    if options.json:
        print(json.dumps(as_json(result, options.target)))
    report(result, options.target, to_errors=options.json)
    return 0 if result.passed else 1


def as_json(result: "Result", target: str) -> dict[str, Any]:
    return {
        "test": result.test,
        "target": target,
        "passed": result.passed,
        "packets": result.packets,
        "expected": result.expected,
        "received": result.received,
        "failures": [
            {
                "line": failure.line,
                "message": failure.message,
                "port": failure.port,
                "byte": failure.byte,
                "expected": failure.expected,
                "received": failure.received,
            }
            for failure in result.failures
        ],
        "notes": list(result.notes),
    }


def report(result: "Result", target: str, *, to_errors: bool) -> None:
    out = sys.stderr if to_errors else sys.stdout
    for note in result.notes:
        print(note, file=out)
    for failure in result.failures:
        print(f"{result.test}:{failure.line}: {failure.message}", file=out)
        if failure.picture:
            print(failure.picture, file=out)
    counts = f"{plural(result.packets, 'packet')} in, {result.received} out, {result.expected} expected"
    print(f"{'pass' if result.passed else 'FAIL'}: {result.test} on {target}: {counts}", file=out)

"""`sa-atp stf`: runs a packet test."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural

if TYPE_CHECKING:
    from sa_atp.switches.embedded.stf.runner import StfResult

TARGETS = ("embedded", "bmv2", "tofino-model", "tofino2-model")
LONGEST_CLOCK_S = 1e8  # three years


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "stf",
        help="run a packet test on a P4 switch",
        description="Runs a packet test in p4c's STF format: packets in, packets out, table entries, counters.",
    )
    parser.add_argument("program", type=Path, metavar="PROGRAM", help="BMv2 JSON, as p4c-bm2-ss writes it; for a model, "
                        "the folder that p4c's Tofino back end wrote")  # fmt: skip
    parser.add_argument("test", type=Path, metavar="TEST.stf")
    parser.add_argument("--target", choices=TARGETS, default="embedded", help="default: embedded")
    parser.add_argument("--clock", type=float, metavar="SECONDS", help="embedded and models: how long the switch has been "
                        "running when the test begins (default: 1)")  # fmt: skip
    parser.add_argument("--plain", action="store_true",
                        help="embedded: run the translated program as plain Python, to step through it")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run, waits="running the packet test")


def run(options: argparse.Namespace) -> int:
    from sa_atp.switches import artefacts
    from sa_atp.switches.control import tofino
    from sa_atp.switches.embedded.stf import grammar, runner
    from sa_atp.switches.embedded.stf.names import ProgramNames

    if options.plain and options.target != "embedded":
        raise UserError("--plain is about the embedded target: drop it, or choose --target embedded")
    if options.clock is not None and options.target == "bmv2":
        raise UserError("--clock: BMv2's clock is the machine's: drop it, or choose another target")
    clock_s = 1.0 if options.clock is None else options.clock
    if not 0 <= clock_s < LONGEST_CLOCK_S:
        raise UserError(f"--clock {clock_s:g}: expected 0 to {LONGEST_CLOCK_S:g} seconds")
    test = grammar.read(options.test)
    artefacts.check_age(options.program.parent)
    if options.target in tofino.MODELS:
        from sa_atp.lab.packet_tests import tofino_stf

        program = tofino.from_folder(options.program)
        if program.chip != tofino.MODELS[options.target]:
            raise UserError(f"{options.program}: the program is for {program.chip}, not for {options.target}")
        with tofino_stf.running(program, round(clock_s * 1e9)) as model:
            result = runner.run(test, ProgramNames(model.schema), model)
    elif options.target == "bmv2":
        from sa_atp.lab.packet_tests import bmv2

        names = ProgramNames.from_file(options.program)
        with bmv2.running(options.program, names) as switch:
            result = runner.run(test, names, switch)
    else:
        from sa_atp.basics.folders import cache_folder
        from sa_atp.basics.waiting import waiting
        from sa_atp.switches.embedded.pipeline import Pipeline
        from sa_atp.switches.embedded.stf.embedded import EmbeddedTarget

        names = ProgramNames.from_file(options.program)
        pipeline = Pipeline.from_file(options.program, compiled=not options.plain, cache=cache_folder())
        with waiting("compiling the switch program, or loading it from the cache"):
            pipeline.compile()
        result = runner.run(test, names, EmbeddedTarget(pipeline, round(clock_s * 1e6)))
    if options.json:
        print(json.dumps(as_json(result, options.target)))
    report(result, options.target, to_errors=options.json)
    return 0 if result.passed else 1


def as_json(result: "StfResult", target: str) -> dict[str, Any]:
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


def report(result: "StfResult", target: str, *, to_errors: bool) -> None:
    out = sys.stderr if to_errors else sys.stdout
    for note in result.notes:
        print(note, file=out)
    for failure in result.failures:
        print(f"{result.test}:{failure.line}: {failure.message}", file=out)
        if failure.picture:
            print(failure.picture, file=out)
    counts = f"{plural(result.packets, 'packet')} in, {result.received} out, {result.expected} expected"
    print(f"{'pass' if result.passed else 'FAIL'}: {result.test} on {target}: {counts}", file=out)

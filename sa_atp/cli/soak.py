"""`sa-atp soak`: runs the protocol in many small simulated worlds with random faults, and checks what it promises."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from sa_atp.basics.words import plural

if TYPE_CHECKING:
    from sa_atp.lab.soak.run import SoakFailure, SoakResult

NEW_LINE = "\n"


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "soak",
        help="look for what breaks the protocol, in thousands of simulated worlds",
        description="Draws a world from each seed: jobs, networks that lose, double, reorder and damage packets, and "
        "faults of switches, links, workers and the parameter server. Runs it in virtual time and checks what the protocol "
        "promises: every sum is exactly right and the same for all ranks, nothing hangs, errors have a reason, nothing is "
        "left over. A world that fails is made smaller. Exit status 1: something failed.",
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many worlds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first (default: %(default)s)")
    parser.add_argument("--minutes", type=float, metavar="M", help="start no world after this time")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="describe the worlds without running them")
    parser.add_argument("--no-shrink", action="store_true", help="do not shrink worlds that fail")
    parser.add_argument("--json", action="store_true", help="print what was found as one JSON object")
    parser.set_defaults(run=run, waits="loading packages")


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab.experiments.progress import TerminalProgress
    from sa_atp.lab.soak import run as soak

    soak.check(options.first, options.seeds, options.minutes, options.jobs)
    if options.list:
        return _list(options)
    failed = 0
    with TerminalProgress() as progress:
        progress("running worlds, and compiling each program when one first needs it")

        def on_progress(result: "SoakResult") -> None:
            nonlocal failed
            for failure in result.failures[failed:]:
                progress.say(f"seed {failure.seed} failed: {failure.what}: {failure.detail.partition(NEW_LINE)[0]}")
            failed = len(result.failures)
            progress.steps(result.seeds, options.seeds, "seeds")

        result = soak.soak(
            options.first,
            options.seeds,
            minutes=options.minutes,
            jobs=options.jobs,
            shrinks=not options.no_shrink,
            on_progress=on_progress,
        )
    if options.json:
        print(json.dumps(result.as_dict()))
    else:
        _print(result)
    return 1 if result.is_bad else 0


def _list(options: argparse.Namespace) -> int:
    from sa_atp.lab.soak.draw import draw

    scenes = [draw(options.first + number) for number in range(options.seeds)]
    if options.json:
        print(json.dumps({"worlds": [scene.as_dict() for scene in scenes]}))
        return 0
    for scene in scenes:
        print(f"seed {scene.seed}")
        for line in scene.words():
            print(f"  {line}")
    return 0


def _print(result: "SoakResult") -> None:
    numbers = result.as_dict()
    for failure in result.failures:
        _print_failure(failure)
    memory = numbers["memory_mb"]
    print(
        f"{plural(numbers['seeds'], 'world')} in {numbers['elapsed_s']:.1f} s, {numbers['virtual_s']:.0f} s of virtual "
        f"time: {plural(numbers['sums'], 'sum')}, {plural(numbers['packets'], 'packet')}, "
        f"{plural(numbers['errors'], 'error')} that faults explain"
    )
    grown = "" if memory["growth"] is None else f", {memory['growth']:.0f} MB more than when all code was loaded"
    print(f"memory of a process: {memory['last']:.0f} MB{grown}")
    for problem in result.problems:
        print(f"FAILED: {problem}")
    if result.failures:
        print(f"FAILED: {plural(len(result.failures), 'world')}")
    elif not result.problems:
        print("nothing failed")


def _print_failure(failure: "SoakFailure") -> None:
    print(f"seed {failure.seed} FAILED: {failure.what}: {failure.detail}")
    print(f"  again: {failure.repeat_command}")
    print("  the smallest world found that fails in this way:")
    for line in failure.scene:
        print(f"    {line}")
    print(f"  there: {failure.shrunk_detail}")
    print("  its last packets:")
    for line in failure.transcript:
        print(f"    {line}")

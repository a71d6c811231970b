"""Whatever datagrams come, no compiled function of a worker and of the parameter server reads or writes outside of its
buffers: `python -m tests.net.worker_fuzz MILLIONS [SEED]` ends at the first that does.

Two worlds in turn (fuzzed_worlds.py), each with all of the compiled path: the loop of a stream that flows, the socket's two
functions, and those that the rules call. Parts run in processes of their own, so that one that dies says what it was about.
"""

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections import Counter

from sa_atp.protocol.rank.compiled import steady

from .fuzzed_worlds import ServerWorld, WorkerWorld
from .scripted_calls import FAULTS_KNOWN, Built, build

PART = 100_000  # datagrams of a process
TURNS = 2000  # of a world
SERVER_SHARE = 0.2  # of worlds
ENDS = (
    "look: as many rows as there are", "look: messages side by side", "look: nothing more", "look: room is full",
    "loop: results taken", "loop: answers taken", "loop: contributions and questions sent", "loop: questions asked",
    "loop: gaps between transmissions", "loop ended: a chunk is complete", "loop ended: a stranger",
    "loop ended: a shorter datagram behind others", "loop ended: another size", "loop ended: content of a result",
    "loop ended: content of an answer", "loop ended: sending was refused",
    "rules: streams, none", "rules: streams, one", "rules: streams, several", "rules: take, all", "rules: take, nothing",
    "rules: fill, all", "rules: fill, a part, or nothing", "server: streams, none", "server: streams, one",
    "server: streams, several", "server: results kept", "sums that were complete",
)  # fmt: skip
"""Outcomes that a run must reach to be meaningful."""


def fuzz(built: Built, datagrams: int, seed: int, seen: Counter[str]) -> None:
    """Processes datagrams, and counts their outcomes in `seen`. Raises: any exception, which no datagram may cause."""
    rng = random.Random(seed)
    least, steady.LEAST_MISSING = steady.LEAST_MISSING, 4
    try:
        while seen["datagrams"] < datagrams:
            is_server = rng.random() < SERVER_SHARE
            world = (ServerWorld if is_server else WorkerWorld)(built, rng, seen)
            before = seen["datagrams"]
            for _ in range(TURNS):
                if not world.turn() or seen["datagrams"] >= datagrams:
                    break
            seen[f"worlds: {'servers' if is_server else 'workers'}"] += 1
            seen[f"datagrams of {'servers' if is_server else 'workers'}"] += seen["datagrams"] - before
    finally:
        steady.LEAST_MISSING = least


def part(built: Built, datagrams: int, seed: int) -> tuple[Counter[str], str]:
    """Runs `fuzz` in a child process. Returns: the outcomes, and what went wrong."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        seen: Counter[str] = Counter()
        wrong = ""
        try:
            fuzz(built, datagrams, seed, seen)
        except BaseException:
            wrong = traceback.format_exc()
        with os.fdopen(theirs, "w") as out:
            json.dump([seen, wrong], out)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as told:
        text = told.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or not text:
        return Counter(), f"the process ended with {status}"
    found, wrong = json.loads(text)
    return Counter(found), wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", type=float)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--fault", choices=list(FAULTS_KNOWN), help="with this in the sources, which has to be found")
    parser.add_argument(
        "--unchecked", action="store_true", help="indices are looked at by nothing but guards, as in use"
    )
    options = parser.parse_args()
    built = build(faults=options.fault is not None, boundscheck=not options.unchecked)
    seen: Counter[str] = Counter()
    start, seed = time.monotonic(), options.seed
    with built.fault(options.fault):
        while seen["datagrams"] < 1e6 * options.millions:
            found, wrong = part(built, int(min(PART, 1e6 * options.millions - seen["datagrams"])), seed)
            seen += found
            if wrong:
                print(f"{wrong}\nfound with seed {seed}, after {seen['datagrams']} datagrams", flush=True)
                return 1
            print(f"{seen['datagrams']} datagrams, seed {seed}, {time.monotonic() - start:.0f} s", flush=True)
            seed += 1
    for what, count in sorted(seen.items()):
        print(f"{count:12,} {what}")
    missed = [end for end in ENDS if not seen[end]]
    print(f"never came to: {', '.join(missed)}" if missed else "nothing was read or written outside of the buffers")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

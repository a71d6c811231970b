"""`sa-atp bench parallel`: the throughput of this machine's cores with several micro-batches at a time.

Threads compute gradients of the demo's CNN, each with a copy of the model of its own. The curve is what a plan has as
`job.parallel_gain`. Rounds with 1, 2, 4 and 8 threads alternate, so that other load on the machine meets all of them alike;
the gain is the median over rounds.
"""

import argparse
import json
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.steps.parallel import POINTS
from sa_atp.steps.workloads.digits import DigitsCnn

TASKS = 24  # micro-batches of a round, whatever the number of threads
MOST_SAMPLES = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=128, metavar="N",
                        help="samples of a micro-batch (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=9, metavar="K",
                        help="rounds with each number of threads (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError."""
    if not 1 <= options.samples <= MOST_SAMPLES:
        raise UserError(f"--samples {options.samples}: expected 1 to {MOST_SAMPLES}")
    if not 1 <= options.rounds <= 1000:
        raise UserError(f"--rounds {options.rounds}: expected 1 to 1000")
    found = measure(options.samples, options.rounds)
    if options.json:
        print(json.dumps(found))
    else:
        columns = ("micro-batches at a time", "micro-batches per second", "gain", "time of one")
        table = terminal.table((), columns)
        for n, rate, gain in zip(found["at_a_time"], found["per_second"], found["gain"], strict=True):
            table.add_row(str(n), f"{rate:.0f}", f"{gain:.2f}", f"{n / gain:.2f} times")
        terminal.print_table(terminal.console(), table)
        print(f"{plural(found['cores'], 'core')}; job.parallel_gain = {[round(gain, 2) for gain in found['gain']]}")
    return 0


def measure(samples: int, rounds: int) -> dict[str, Any]:
    """Measures the curve. Args: samples: of a micro-batch.

    Returns: at_a_time, per_second (median micro-batches), gain (median ratio to one at a time, in the same round), cores.
    """
    models = [
        DigitsCnn(seed=1, world_size=1, batch_size=samples, micro_batches=1, learning_rate=0.1)
        for _ in range(max(POINTS))
    ]
    for model in models:
        model.gradient(0, 0, 0)
    rates: dict[int, list[float]] = {n: [] for n in POINTS}
    for turn in range(rounds):
        for n in POINTS if turn % 2 == 0 else POINTS[::-1]:
            rates[n].append(_rate(models[:n]))
    return {
        "samples": samples,
        "at_a_time": list(POINTS),
        "per_second": [statistics.median(rates[n]) for n in POINTS],
        "gain": [statistics.median(a / b for a, b in zip(rates[n], rates[1], strict=True)) for n in POINTS],
        "cores": len(os.sched_getaffinity(0)),
    }


def _rate(models: list[DigitsCnn]) -> float:
    """Micro-batches per second of so many threads, one for each model."""
    start = threading.Barrier(len(models) + 1)
    count = TASKS // len(models)

    def compute(model: DigitsCnn) -> None:
        start.wait()
        for step in range(count):
            model.gradient(step, 0, 0)

    with ThreadPoolExecutor(len(models)) as threads:
        computing = threads.map(compute, models)
        start.wait()
        began_s = time.perf_counter()
        list(computing)
        return count * len(models) / (time.perf_counter() - began_s)

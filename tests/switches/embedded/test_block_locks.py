"""A program on several cores at the same time: the output is that of one core."""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from golden.generate import FOLDER

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.basics.folders import cache_folder
from sa_atp.lab.bench.switch.memory import MemoryCore, check, rounds, take_together
from sa_atp.lab.bench.switch.traffic import WORKERS, hosts, job
from sa_atp.switches import artefacts
from sa_atp.switches.control import jobs
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded import bits, block_locks
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.stf import grammar, runner
from sa_atp.switches.embedded.stf.embedded import EmbeddedTarget
from sa_atp.switches.embedded.stf.names import ProgramNames

BUILD = (64, 64)
"""Lanes and contributions."""


@cache
def shared() -> Pipeline:
    config = artefacts.program(*BUILD).device_config()
    return Pipeline.from_config(config, cache=cache_folder(), shared=True)


@cache
def operations() -> dict[str, Callable[..., Any]]:
    return block_locks.compiled(bits.compiled())


@pytest.mark.parametrize("vector", ["aggregate", "collisions", "evictions", "resends", "saturation", "leaf"])
def test_the_shared_program_passes_packet_tests(vector: str) -> None:
    names = ProgramNames.from_file(artefacts.program(*BUILD).json_path)
    result = runner.run(grammar.read(FOLDER / f"{vector}.stf"), names, EmbeddedTarget(shared()))
    assert result.passed, result.failures
    assert result.expected >= 3


def test_the_shared_program_as_plain_python_passes_them_too() -> None:
    program = artefacts.program(*BUILD)
    plain = Pipeline.from_config(program.device_config(), compiled=False, shared=True)
    assert "hold(holds" in plain.translation.source
    vector = grammar.read(FOLDER / "saturation.stf")
    assert runner.run(vector, ProgramNames.from_file(program.json_path), EmbeddedTarget(plain)).passed


@pytest.mark.parametrize("cores", [2, 4])
def test_every_sum_is_made_once_and_right(cores: int) -> None:
    """All workers of a job contribute to the same slots at the same time."""
    pipeline = shared()
    pipeline.reset()
    members, server = hosts()
    jobs.install(LocalWriter(pipeline), job(members, server))
    count, fragments = 100, 1000
    team: list[MemoryCore] = []
    for number, each in enumerate(rounds(cores, count, fragments, BUILD, seed=cores)):
        team = team or [MemoryCore(pipeline, len(lengths), each.row_bytes) for _, lengths, _ in each.batches]
        with pipeline.lock:
            found = take_together(team, each.batches, number)
            for core in team:
                pipeline.add_counts(core.frame)
        check(each, found, BUILD)
    counted = pipeline.counter("job_events")
    assert counted[:, 0].sum() == count * fragments * WORKERS


def _adds(function: Callable[..., None], threads: int) -> None:
    running = [threading.Thread(target=function, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not any(thread.is_alive() for thread in running), "threads wait for one another"


@cache
def adding() -> Callable[..., None]:
    """Adds 1 to cells, in two steps, with each cell's block locked; blocks in the order of the list, or backwards."""
    import numba

    give_way = numba.types.ExternalFunction("sched_yield", numba.int32())
    hold, let_go = operations()["hold"], operations()["let_go"]
    none = np.uint64(block_locks.BLOCKS)
    bits_of_block = np.uint64(block_locks.BLOCK_BITS)

    @numba.njit(nogil=True)
    def add(holds: AnyIntegers, cells: AnyIntegers, order: AnyIntegers, times: int, holds_them: bool) -> None:
        held = none
        for _ in range(times):
            for cell in order:
                block = np.uint64(cell) >> bits_of_block
                if holds_them and block != held:
                    held = hold(holds, block, held)
                before = cells[cell]
                give_way()  # so that somebody else would come in between
                cells[cell] = before + 1
        let_go(holds, held)

    return add


def test_block_locks_exclude_and_do_not_deadlock() -> None:
    cells, holds = np.zeros(512, np.int64), block_locks.new_locks()
    order = np.arange(0, 512, 16)
    threads, times = 4, 300
    add = adding()

    def lost(holds_them: bool) -> int:
        cells[:] = 0
        _adds(lambda number: add(holds, cells, order[:: 1 - 2 * (number % 2)].copy(), times, holds_them), threads)
        return int((threads * times - cells[order]).sum())

    assert any(lost(False) for _ in range(20))  # the test sees what it looks for
    assert lost(True) == 0
    assert not holds.any()


def test_counters_of_cores_come_together() -> None:
    pipeline = shared()
    pipeline.reset()
    first, second = pipeline.new_frame(), pipeline.new_frame()
    name = next(iter(pipeline.counters))
    for frame, packets in ((first, 3), (second, 4)):
        pipeline.bring_up_to_date(frame)
        frame.own["counter", name][5] = packets, 100 * packets
        pipeline.add_counts(frame)
        pipeline.add_counts(frame)  # nothing is counted twice
    assert pipeline.counter(name)[5].tolist() == [7, 700]

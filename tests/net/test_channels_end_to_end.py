"""Processes as users start them: ranks share memory with their switch, also with the one that comes after it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import sa_atp
from sa_atp.lab.backends.cluster import LOOPBACK, READY_TIMEOUT_S, WORKERS_PORT
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.net.communicator import Communicator

VALUES = 100_000
WAIT_S = 30.0


def start_switch(group: Group, folder: Path, udp: str, grpc: str) -> tuple[Process, str, str]:
    """Starts a switch. Args: udp, grpc: addresses. Returns: the process, and the addresses."""
    arguments = ["--lanes", "256", "--udp", f"{WORKERS_PORT}={udp}", "--grpc", grpc]
    switch = group.start("switch", ["sa_atp", "switch", *arguments], folder / "switch.log")
    answer = switch.answer(READY_TIMEOUT_S)
    host, port = answer["udp"][str(WORKERS_PORT)]
    return switch, f"{host}:{port}", str(answer["grpc"])


def all_reduce(ranks: list[Communicator]) -> None:
    arrays = [np.full(VALUES, rank + 1.0, np.float32) for rank in range(len(ranks))]
    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(Communicator.all_reduce, ranks, arrays, timeout=WAIT_S))
    for array in arrays:
        assert (array == sum(range(1, len(ranks) + 1))).all()


def has_channel(comm: Communicator) -> bool:
    return comm._driver.socket.channel is not None


def test_ranks_share_memory_with_the_switch_that_comes_after_theirs(tmp_path: Path) -> None:
    with Group() as group:
        switch, udp, grpc = start_switch(group, tmp_path, f"{LOOPBACK}:0", f"{LOOPBACK}:0")
        server = group.start(
            "parameter server",
            ["sa_atp", "ps", "--listen", f"{LOOPBACK}:0", "--grpc", grpc, "--switch-address", udp],
            tmp_path / "ps.log",
        )
        host, port = server.answer(READY_TIMEOUT_S)["address"]
        address = f"udp://{host}:{port}"

        def join(rank: int) -> Communicator:
            return sa_atp.connect(address, job="job", rank=rank, world_size=3)

        with ThreadPoolExecutor(3) as pool:
            ranks = list(pool.map(join, range(3), timeout=WAIT_S))
        assert all(comm.shares_memory and has_channel(comm) for comm in ranks)
        all_reduce(ranks)
        switch.end()
        start_switch(group, tmp_path, udp, grpc)
        all_reduce(ranks)
        end = time.monotonic() + WAIT_S
        while not all(map(has_channel, ranks)):
            assert time.monotonic() < end
            all_reduce(ranks)
            time.sleep(0.1)
        all_reduce(ranks)
        for comm in ranks:
            threading.Thread(target=comm.close).start()

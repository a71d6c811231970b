"""The switch's loop with real sockets: the same datagrams whether it is compiled or runs in Python."""

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sa_atp.basics.folders import cache_folder
from sa_atp.lab.bench.switch import traffic as switch_traffic
from sa_atp.net.sockets.ports import UdpPort
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.net.switch_process.impair import ImpairedPort, Impairment
from sa_atp.net.switch_process.process import SwitchLoop
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.frames import mac_for
from sa_atp.protocol.packets.header import HEADER
from sa_atp.switches import artefacts
from sa_atp.switches.control import jobs, routes
from sa_atp.switches.control.jobspec import Member
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.device import Device

LOOPBACK = "127.0.0.1"
PORT, CPU_PORT = 1, 9
WAIT_S = 20.0


class Switch:
    """A running loop, and the sockets of four workers and the parameter server."""

    def __init__(
        self,
        *,
        compiled: bool,
        cores: int = 1,
        shares: bool = False,
        arrivals: Impairment | None = None,
        departures: Impairment | None = None,
    ) -> None:
        """Args:
        cores: number of cores and ports; hosts are distributed over the ports in turn.
        shares: whether the loop gives channels to processes that ask for them.
        arrivals, departures: impairments of each port's link; None: none.
        """
        self.device = Device(clock=lambda: 0, cpu_port=CPU_PORT, compiled=compiled, cache=cache_folder(), cores=cores)
        self.ports = [UdpPort((LOOPBACK, 0)) for _ in range(cores)]
        self.port = self.ports[0]
        ports = {
            PORT + i: port
            if arrivals is departures is None
            else ImpairedPort(port, arrivals=arrivals, departures=departures, seed=i)
            for i, port in enumerate(self.ports)
        }
        self.loop = SwitchLoop(self.device, ports, shares=shares)
        self.sockets = [UdpSocket((LOOPBACK, 0)) for _ in range(switch_traffic.WORKERS + 1)]
        mac = ":".join(f"{byte:02x}" for byte in mac_for(LOOPBACK).to_bytes(6, "big"))
        *self.members, self.server = [
            Member(ip=LOOPBACK, udp_port=each.address[1], mac=mac, switch_port=PORT + rank % cores, rank=rank)
            for rank, each in enumerate(self.sockets)
        ]
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def install(self) -> None:
        pipeline = self.device.install(artefacts.program(64).device_config())
        jobs.install(LocalWriter(pipeline), switch_traffic.job(self.members, self.server))

    def contribute(self, rank: int, fragments: range) -> None:
        made = switch_traffic.Contributions(self.members[rank], self.server, (64, 64), len(fragments))
        port = self.ports[rank % len(self.ports)]
        self.sockets[rank].send([Burst(port.address, made.of(np.array(fragments)))])

    def received(self, rank: int, count: int) -> list[bytes]:
        """At least `count` datagrams that arrive at a worker; fewer if none comes for WAIT_S."""
        found: list[bytes] = []
        end = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < end:
            channel = self.sockets[rank].channel
            if channel is None or channel.fall_asleep():
                bells = [] if channel is None else [channel.bell]
                readable, _, _ = select.select([self.sockets[rank].fileno(), *bells], [], [], 0.1)
                if channel is not None:
                    channel.wake_up(channel.bell in readable)
            arrived = [row.tobytes() for burst in self.sockets[rank].receive() for row in burst.data]
            if arrived:
                found += arrived
                end = time.monotonic() + WAIT_S
        return found

    def close(self) -> None:
        self.loop.stop()
        self.thread.join(WAIT_S)
        self.loop.close()
        for each in self.sockets:
            each.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Switch]:
    """Args: options: those of Switch."""
    switch = Switch(**options)
    try:
        yield switch
    finally:
        switch.close()


def test_every_worker_gets_the_same_sums_compiled_and_in_python() -> None:
    seen = []
    for compiled in (True, False):
        with running(compiled=compiled) as switch:
            switch.install()
            for first in (0, 40):
                for rank in range(switch_traffic.WORKERS):
                    switch.contribute(rank, range(first, first + 40))
            seen.append([sorted(switch.received(rank, 80)) for rank in range(switch_traffic.WORKERS + 1)])
        arrived, left, lost = switch.loop.packet_counts()
        assert (arrived, left, lost) == (320, 400, 0)
    assert seen[0] == seen[1]
    assert [len(each) for each in seen[0]] == [80] * 5
    assert len({tuple(each) for each in seen[0]}) == 1
    header = np.frombuffer(b"".join(each[: HEADER.itemsize] for each in seen[0][0]), HEADER)
    assert sorted(header["seq"].tolist()) == list(range(80))


@pytest.mark.parametrize("compiled", [True, False])
def test_impaired_links_delay_and_lose_packets_in_both_directions(compiled: bool) -> None:
    slow = Impairment(delay_us=30_000)
    with running(compiled=compiled, arrivals=slow, departures=slow) as switch:
        switch.install()
        begun = time.monotonic()
        for rank in range(switch_traffic.WORKERS):
            switch.contribute(rank, range(40))
        assert [len(switch.received(rank, 40)) for rank in range(switch_traffic.WORKERS + 1)] == [40] * 5
        assert time.monotonic() - begun >= 0.06
    with running(compiled=compiled, departures=Impairment(loss=1.0)) as switch:
        switch.install()
        for rank in range(switch_traffic.WORKERS):
            switch.contribute(rank, range(40))
        wait_until(lambda: [(each.cause, each.count) for each in switch.loop.drops()] == [("impaired", 200)])
        assert switch.loop.packet_counts()[0] == 160


def test_several_cores_make_the_same_sums_as_one() -> None:
    seen = []
    for count in (1, 3):
        with running(compiled=True, cores=count) as switch:
            switch.install()
            got: list[list[bytes]] = [[] for _ in switch.sockets]
            for first in range(0, 2000, 40):
                for rank in range(switch_traffic.WORKERS):
                    switch.contribute(rank, range(first, first + 40))
                for rank, found in enumerate(got):
                    found += switch.received(rank, 40)
            seen.append([sorted(each) for each in got])
            pipeline = switch.device.pipeline
            assert pipeline is not None
            with pipeline.lock:
                assert pipeline.counter("job_events")[:, 0].sum() == 2000 * switch_traffic.WORKERS
        assert switch.loop.packet_counts() == (8000, 10000, 0)
    assert seen[0] == seen[1]


def test_on_several_cores_tables_change_and_the_cpu_port_hears(open_socket: Callable[[], UdpSocket]) -> None:
    """Packets of all cores' ports follow the table; a thread can change it meanwhile, and all cores see the change."""
    got: list[bytes] = []
    with running(compiled=True, cores=3) as switch:
        switch.install()
        pipeline = switch.device.pipeline
        assert pipeline is not None
        switch.device.add_packet_in_listener(got.append)
        routes.add(LocalWriter(pipeline), LOOPBACK, CPU_PORT)
        other = open_socket()
        payload = np.frombuffer(b"\0" * 40, np.uint8).reshape(1, -1)
        for port in switch.ports:
            other.send([Burst(port.address, payload)])
        wait_until(lambda: len(got) >= 3)
    assert len(got) == 3


@pytest.mark.parametrize("compiled", [True, False])
def test_packets_without_a_program_are_counted_and_dropped(compiled: bool) -> None:
    with running(compiled=compiled) as switch:
        switch.contribute(0, range(70))
        wait_until(lambda: switch.device.dropped_without_pipeline >= 70)
        assert switch.device.dropped_without_pipeline == 70
        switch.install()
        switch.contribute(0, range(1))
        for rank in range(1, switch_traffic.WORKERS):
            switch.contribute(rank, range(1))
        assert len(switch.received(0, 1)) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_packets_for_the_cpu_port_reach_their_listeners(compiled: bool, open_socket: Callable[[], UdpSocket]) -> None:
    """Fragments of a job that is not admitted follow the route of their address, here to the CPU port."""
    got: list[bytes] = []
    with running(compiled=compiled) as switch:
        switch.install()
        assert switch.device.pipeline is not None
        routes.add(LocalWriter(switch.device.pipeline), LOOPBACK, CPU_PORT)
        switch.device.add_packet_in_listener(got.append)
        payload = np.frombuffer(b"\0" * 40, np.uint8).reshape(1, -1)
        open_socket().send([Burst(switch.port.address, np.tile(payload, (3, 1)))])
        wait_until(lambda: len(got) >= 3)
    assert len(got) == 3
    assert all(frame[42:] == payload.tobytes() for frame in got)


def test_the_control_plane_is_let_in_while_packets_arrive() -> None:
    with running(compiled=True) as switch:
        switch.install()
        assert switch.device.pipeline is not None
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                switch.contribute(0, range(40))

        sender = threading.Thread(target=send)
        sender.start()
        end = time.monotonic() + WAIT_S
        commits = 0
        try:
            while (commits < 20 or not switch.loop.packet_counts()[0]) and time.monotonic() < end:
                with switch.device.pipeline.lock:
                    switch.device.pipeline.commit(switch.device.pipeline.table("bridge"))
                commits += 1
        finally:
            stop.set()
            sender.join(WAIT_S)
    assert commits >= 20
    assert switch.loop.packet_counts()[0] > 0

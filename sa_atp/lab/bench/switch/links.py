"""The two kinds of interfaces that are measured: UDP virtual ports, and veth pairs."""

import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sa_atp.basics.arrays import ByteRows, Indices
from sa_atp.basics.errors import MissingPartError
from sa_atp.lab.bench.switch.hosts import Hosts
from sa_atp.lab.bench.switch.request import SwitchRequest
from sa_atp.lab.bench.switch.traffic import WORKERS, Contributions, Results, Traffic, TrafficLink, hosts, job
from sa_atp.lab.runs import bmv2
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.net.sockets import offload
from sa_atp.net.sockets.ports import RECEIVE_BYTES, RECEIVE_PACKETS, InterfacePort
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.frames import HEADERS_BYTES, mac_for
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import Kind
from sa_atp.switches import artefacts
from sa_atp.switches.control import jobs
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.jobspec import JobSpec, Member

LOOPBACK = "127.0.0.1"
UDP_PORT_OF_SWITCH = 1
READY_TIMEOUT_S = 180.0  # the first start compiles the program
PUSH_TIMEOUT_S = 30.0
WINDOWS = {"embedded": (256, 512), "bmv2": (32, 64)}  # fragments in flight; BMv2's queues hold 64 packets
WARM_UP_FRAGMENTS = 2048
MOST_SECONDS = 8.0  # of one measurement


def measure(request: SwitchRequest, folder: Path) -> dict[str, Any]:
    """Measures contributions per second, and the switch's CPU time per contribution, which other processes do not affect.

    Args: folder: for logs.
    Returns: pps, cpu_us_per_packet, kernel_us_per_packet, waiting_us_per_packet, window, packets.
    Raises: SaAtpError.
    """
    with Group() as group:
        if request.link == "udp":
            return _over_udp(request, group, folder)
        return _over_veth(request, group, folder)


def _best(request: SwitchRequest, spec: JobSpec, link: TrafficLink, switch: Process) -> dict[str, Any]:
    """The best result of some windows: a target that drops packets in bursts needs a small one."""
    traffic = Traffic(link, spec, request.build, switch.check)
    found: dict[str, Any] = {"pps": 0.0}
    for window in WINDOWS[request.target]:
        pps = traffic.run(WARM_UP_FRAGMENTS, window)
        fragments = min(request.packets, int(pps * MOST_SECONDS)) // WORKERS + 1
        before_s = switch.cpu_times_s()
        pps = traffic.run(fragments, window)
        packets = fragments * WORKERS
        if pps > found["pps"]:
            own, kernel = (
                (after - before) * 1e6 / packets for after, before in zip(switch.cpu_times_s(), before_s, strict=True)
            )
            found = {
                "pps": pps,
                "cpu_us_per_packet": own + kernel,
                "kernel_us_per_packet": kernel,
                "waiting_us_per_packet": max(0.0, 1e6 / pps - own - kernel),
                "window": window,
                "packets": packets,
            }
    return found


def _start(request: SwitchRequest, group: Group, folder: Path, ports: Sequence[str]) -> tuple[Process, dict[str, Any]]:
    """Starts the switch. Args: ports: arguments for them. Returns: its process, and its addresses: `grpc`, `udp`."""
    if request.target == "bmv2":
        grpc = f"unix:{folder}/p4runtime"
        arguments = bmv2.start_arguments(None, device_id=0, thrift_port=bmv2.free_port(), grpc=grpc)
        return group.add(bmv2.start([*ports, *arguments], folder / "bmv2.log")), {"grpc": grpc}
    build = ["--lanes", str(request.lanes), "--contributions", str(request.contributions)]
    options = [*build, "--cores", str(request.cores), "--grpc", f"{LOOPBACK}:0"]
    switch = group.start("switch", ["sa_atp", "switch", *options, *ports], folder / "switch.log")
    return switch, switch.answer(READY_TIMEOUT_S)


# --- UDP --------------------------------------------------------------------------------------------------------------


def _over_udp(request: SwitchRequest, group: Group, folder: Path) -> dict[str, Any]:
    switch, ready = _start(request, group, folder, ["--udp", f"{UDP_PORT_OF_SWITCH}={LOOPBACK}:0"])
    sockets = [UdpSocket((LOOPBACK, 0)) for _ in range(WORKERS + 1)]  # the last one for the parameter server
    mac = ":".join(f"{byte:02x}" for byte in mac_for(LOOPBACK).to_bytes(6, "big"))
    *members, server = [
        Member(ip=LOOPBACK, udp_port=each.address[1], mac=mac, switch_port=UDP_PORT_OF_SWITCH, rank=rank)
        for rank, each in enumerate(sockets)
    ]
    spec = job(members, server)
    with P4RuntimeClient(ready["grpc"]) as client:
        jobs.install(client, spec)
    address = (LOOPBACK, int(ready["udp"][str(UDP_PORT_OF_SWITCH)][1]))
    return _best(request, spec, UdpLink(sockets, address), switch)


class UdpLink:
    def __init__(self, sockets: list[UdpSocket], switch: Address) -> None:
        self._sockets = sockets
        self._switch = switch

    def send(self, rank: int, contributions: Contributions, fragments: Indices) -> None:
        self._sockets[rank].send([Burst(self._switch, contributions.of(fragments))])

    def run(self, senders: Sequence[Contributions], results: Results, window: int, burst: int) -> int:
        return 0

    def receive(self, longest_s: float) -> list[ByteRows]:
        select.select([self._sockets[0]], [], [], longest_s)
        return [burst.data for burst in self._sockets[0].receive()]


# --- veth -------------------------------------------------------------------------------------------------------------


def _over_veth(request: SwitchRequest, group: Group, folder: Path) -> dict[str, Any]:
    members, server = hosts()
    spec = job(members, server)
    ports = [host.switch_port for host in (*members, server)]
    make_pairs(ports)
    interfaces = [word for port in ports for word in ("-i", f"{port}@sw{port}")]
    switch, ready = _start(request, group, folder, interfaces)
    with P4RuntimeClient(ready["grpc"], timeout_s=PUSH_TIMEOUT_S) as client:
        if request.target == "bmv2":
            program = artefacts.program(*request.build)
            client.push_pipeline(program.p4info(), program.device_config())
        jobs.install(client, spec)
    # BMv2 does not handle offloads of its interfaces
    ends = [InterfacePort(f"host{member.switch_port}", joins=request.target == "embedded") for member in members]
    return _best(request, spec, VethLink(ends, HEADERS_BYTES + size_of(Kind.RESULT, *request.build)), switch)


class VethLink:
    """Hosts at the far ends of the pairs, which use super-packets, as Linux does."""

    def __init__(self, ends: list[InterfacePort], result_bytes: int) -> None:
        """Args: result_bytes: size of a frame with a result; others are ignored."""
        self._ends = ends
        self._result_bytes = result_bytes
        # Python handles only lost packets and the last fragments
        self._hosts = Hosts(ends, result_bytes) if all(end.joins for end in ends) else None
        self._packets = np.empty((RECEIVE_PACKETS, RECEIVE_BYTES), np.uint8)

    def send(self, rank: int, contributions: Contributions, fragments: Indices) -> None:
        frames = contributions.frames(fragments)
        self._ends[rank].send(frames, np.full(len(frames), frames.shape[1]))

    def run(self, senders: Sequence[Contributions], results: Results, window: int, burst: int) -> int:
        return self._hosts.run(senders, results, window, burst) if self._hosts is not None else 0

    def receive(self, longest_s: float) -> list[ByteRows]:
        select.select([self._ends[0]], [], [], longest_s)
        lengths = self._ends[0].receive_packets(self._packets)
        return [found for i, length in enumerate(lengths.tolist()) if (found := self._results(i, length)) is not None]

    def _results(self, i: int, length: int) -> ByteRows | None:
        """The payloads in a packet."""
        packet = self._packets[i, : max(length, 0)]
        size = self._result_bytes - HEADERS_BYTES
        payload = packet[offload.VNET_BYTES + HEADERS_BYTES :]
        is_super = len(payload) > size
        if len(payload) < size or len(payload) % size or (is_super and packet[4:6].view(np.uint16)[0] != size):
            return None
        return payload.reshape(-1, size)


LINK_MTU = 9000  # enough for every build


def make_pairs(ports: list[int]) -> None:
    """Makes interfaces swN and hostN for each port, up and without addresses. Raises: MissingPartError."""
    ipv6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
    if ipv6.exists():  # its neighbour discovery would reach the switch
        ipv6.write_text("1")
    lines = ["link set lo up"]
    for port in ports:
        lines.append(f"link add sw{port} type veth peer name host{port}")
        lines += [f"link set {name}{port} mtu {LINK_MTU} up" for name in ("sw", "host")]
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False, timeout=30
    )
    if done.returncode:
        raise MissingPartError(
            f"veth pairs cannot be made here: {(done.stderr.strip() or 'no reason given').splitlines()[0]}"
        )

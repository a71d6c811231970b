"""The switch of other protocols, and their jobs on it.

It stands apart from the workers' sockets, because P4Runtime brings protobuf, which no worker needs.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sa_atp.lab.backends.cluster import LOOPBACK, READY_TIMEOUT_S, WORKERS_PORT
from sa_atp.lab.peers.peer import Peer, PeerJob, Seat
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.frames import mac_for
from sa_atp.switches.control.client import P4RuntimeClient


class PeerSwitch(ABC):
    """A switch for one protocol after the other, one job at a time."""

    process: Process
    """Of the switch."""
    grpc: str
    """Where its P4Runtime listens."""
    address: Address
    """The address that workers send to."""
    routes: tuple[tuple[str, int], ...] = ()
    """See PeerJob."""

    @abstractmethod
    def seats(self, workers: int) -> Sequence[Seat]:
        """The places of a job's workers, by rank."""

    def new_job(self, peer: Peer, workers: int, *, lanes: int, slots: int, timeout_us: int) -> dict[str, Any]:
        """Pushes the protocol's program, so that nothing of an earlier job is left, and installs a job.

        Returns: the job, for `job_of`. Raises: UserError: it does not fit the program; ControlError.
        """
        job = PeerJob(
            seats=tuple(self.seats(workers)),
            switch=self.address,
            switch_mac=mac_for(self.address[0]),
            lanes=lanes,
            slots=slots,
            timeout_us=timeout_us,
            routes=self.routes,
        )
        program = peer.program(lanes)
        with P4RuntimeClient(self.grpc) as client:
            client.push_pipeline(program.p4info(), program.device_config(), cookie=program.cookie)
            client.insert(*peer.entries(job))
        found: dict[str, Any] = msgspec.to_builtins(job)
        return found


class LocalPeer(PeerSwitch):
    """An embedded switch as a process on this machine, with one UDP port."""

    def __init__(self, group: Group, logs: Path) -> None:
        """Starts the switch. Args: group: the group that ends its process; logs: an existing folder for its output."""
        arguments = ["sa_atp", "switch", "none", "--udp", f"{WORKERS_PORT}={LOOPBACK}:0", "--grpc", f"{LOOPBACK}:0"]
        self.process = group.start("switch of peers", arguments, logs / "switch-peers.log", forked=())

    def ready(self) -> None:
        """Waits until it runs. Raises: ProcessError."""
        said = self.process.answer(READY_TIMEOUT_S)
        host, port = said["udp"][str(WORKERS_PORT)]
        self.address = (str(host), int(port))
        self.grpc = str(said["grpc"])

    def seats(self, workers: int) -> Sequence[Seat]:
        """Ports of this machine that nobody has at the moment."""
        mac = mac_for(LOOPBACK)
        return [Seat(ip=LOOPBACK, mac=mac, udp_port=port, switch_port=WORKERS_PORT) for port in free_ports(workers)]


def free_ports(count: int) -> list[int]:
    """UDP ports of this machine that nobody has at the moment."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()

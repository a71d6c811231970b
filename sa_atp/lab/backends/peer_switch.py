"""The switch of other protocols as a process on this machine, and their jobs on it.

It stands apart from the workers' sockets, because P4Runtime brings protobuf, which no worker needs.
"""

import socket
from pathlib import Path
from typing import Any

import msgspec

from sa_atp.lab.backends.cluster import LOOPBACK, READY_TIMEOUT_S, WORKERS_PORT
from sa_atp.lab.peers.peer import Peer, PeerJob, Seat
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.protocol.packets.frames import mac_for
from sa_atp.switches.control.client import P4RuntimeClient


class LocalPeer:
    """An embedded switch with one UDP port, for one protocol after the other, one job at a time."""

    def __init__(self, group: Group, logs: Path) -> None:
        """Starts the switch. Args: group: the group that ends its process; logs: an existing folder for its output."""
        arguments = ["sa_atp", "switch", "none", "--udp", f"{WORKERS_PORT}={LOOPBACK}:0", "--grpc", f"{LOOPBACK}:0"]
        self.switch: Process = group.start("switch of peers", arguments, logs / "switch-peers.log", forked=())
        self._said: dict[str, Any] = {}

    def ready(self) -> None:
        """Waits until it runs. Raises: ProcessError."""
        self._said = self.switch.answer(READY_TIMEOUT_S)

    def new_job(self, peer: Peer, workers: int, *, lanes: int, slots: int, timeout_us: int) -> dict[str, Any]:
        """Pushes the protocol's program, so that nothing of an earlier job is left, and installs a job.

        Returns: the job, for `job_of`. Raises: UserError: it does not fit the program; ControlError.
        """
        host, port = self._said["udp"][str(WORKERS_PORT)]
        mac = mac_for(LOOPBACK)
        job = PeerJob(
            seats=tuple(
                Seat(ip=LOOPBACK, mac=mac, udp_port=each, switch_port=WORKERS_PORT) for each in free_ports(workers)
            ),
            switch=(host, port),
            switch_mac=mac_for(host),
            lanes=lanes,
            slots=slots,
            timeout_us=timeout_us,
        )
        program = peer.compiled(lanes)
        with P4RuntimeClient(str(self._said["grpc"])) as client:
            client.push_pipeline(program.p4info(), program.device_config(), cookie=program.cookie)
            client.insert(*peer.entries(job))
        found: dict[str, Any] = msgspec.to_builtins(job)
        return found


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

"""Background load: iperf3 streams, and processes that take CPU time from a worker."""

import time

from sa_atp.basics.errors import SaAtpError
from sa_atp.lab.backends.mininet.layout import BACKGROUND_PORTS
from sa_atp.lab.backends.mininet.network import MininetNetwork
from sa_atp.lab.runs.processes import Process

PAYLOAD_BYTES = 1400
HEADER_BYTES = 14 + 20 + 8
LONGEST_S = 86_400  # streams end with the network
LISTEN_TIMEOUT_S = 10.0
BUSY = "while :; do :; done"


def stream(
    network: MininetNetwork, sender: str, receiver: str, *, udp_mbps: float = 0.0, tcp_flows: int = 0
) -> list[Process]:
    """Sends from one host to another until the network ends. Args: udp_mbps: rate on the wire, headers included."""
    started = []
    kinds = []
    if udp_mbps:
        rate = round(udp_mbps * 1e6 * PAYLOAD_BYTES / (PAYLOAD_BYTES + HEADER_BYTES))
        kinds.append(("udp", ["--udp", "--bitrate", str(rate), "--length", str(PAYLOAD_BYTES)]))
    if tcp_flows:
        kinds.append(("tcp", ["--parallel", str(tcp_flows)]))
    for kind, options in kinds:
        port = str(BACKGROUND_PORTS + _next_number(network))
        name = f"iperf3 {kind} {sender} to {receiver}"
        server = network.start(
            receiver, f"{name} server", ["--server", "--forceflush", "--port", port], program=["iperf3"], talks=False
        )
        _wait_for_listener(server)
        client = ["--client", network.layout.hosts[receiver].ip, "--port", port, "--time", str(LONGEST_S)]
        started += [server, network.start(sender, name, [*client, *options], program=["iperf3"], talks=False)]
    return started


def _next_number(network: MininetNetwork) -> int:
    network.streams += 1
    return network.streams


def _wait_for_listener(server: Process) -> None:
    deadline = time.monotonic() + LISTEN_TIMEOUT_S
    while "listening" not in server.log.read_text(errors="replace"):
        server.check()
        if time.monotonic() > deadline:
            raise SaAtpError(f"{server.name}: not listening after {LISTEN_TIMEOUT_S:.0f} s; its log is {server.log}")
        time.sleep(0.05)


def hog(network: MininetNetwork, host: str, count: int) -> list[Process]:
    """Starts busy loops on a host."""
    return [network.start(host, f"hog {n} of {host}", [BUSY], program=["sh", "-c"], talks=False) for n in range(count)]

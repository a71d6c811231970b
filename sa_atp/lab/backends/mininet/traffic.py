"""Background load: iperf3 streams, and processes that take CPU time from a worker."""

import time

from sa_atp.lab.backends.mininet.layout import BACKGROUND_PORTS
from sa_atp.lab.backends.mininet.network import MininetNetwork
from sa_atp.lab.runs.processes import Process

PAYLOAD_BYTES = 1400
HEADER_BYTES = 14 + 20 + 8
LONGEST_S = 86_400  # streams end with the network
LISTEN_TIMEOUT_S = 10.0
# iperf3 opens a stream by one datagram and its answer. If either is lost, iperf3 waits for 30 s; we start it again sooner
CONNECT_TIMEOUT_S, MOST_TRIES = 3.0, 10
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
        if not _has_said(server, "listening", LISTEN_TIMEOUT_S):
            raise server.failure(f"was not listening after {LISTEN_TIMEOUT_S:.0f} s")
        started += [
            server,
            _client(network, sender, name, [network.layout.hosts[receiver].ip, "--port", port, *options]),
        ]
    return started


def _client(network: MininetNetwork, host: str, name: str, options: list[str]) -> Process:
    """Starts a client of iperf3, and waits until its streams are open; it sends nothing before. Raises: ProcessError."""
    arguments = ["--time", str(LONGEST_S), "--forceflush", "--client", *options]
    for _ in range(MOST_TRIES):
        client = network.start(host, name, arguments, program=["iperf3"], talks=False)
        if _has_said(client, "connected to", CONNECT_TIMEOUT_S):
            return client
        client.end()
    raise client.failure(f"has opened no stream, {MOST_TRIES} times in {CONNECT_TIMEOUT_S:.0f} s")


def _next_number(network: MininetNetwork) -> int:
    network.streams += 1
    return network.streams


def _has_said(process: Process, words: str, timeout_s: float) -> bool:
    """Waits until a process has written words to its log. Returns: whether it has. Raises: ProcessError: it has ended."""
    deadline = time.monotonic() + timeout_s
    while words not in process.log.read_text(errors="replace"):
        process.check()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def hog(network: MininetNetwork, host: str, count: int) -> list[Process]:
    """Starts busy loops on a host."""
    return [network.start(host, f"hog {n} of {host}", [BUSY], program=["sh", "-c"], talks=False) for n in range(count)]

"""The kernel and our rights: each ability is tried, on loopback or in a network namespace that dies with its probe."""

import os
import platform
import resource
import socket
import struct
from collections.abc import Callable

from sa_atp.basics import needs
from sa_atp.basics.errors import OF_MEMORY, USUAL_OPEN_FILES, limit_of
from sa_atp.basics.words import join
from sa_atp.doctor.finding import Finding, attempt
from sa_atp.lab.backends.mininet import trial
from sa_atp.net.sockets import namespace
from sa_atp.net.sockets.udp import BUFFER_BYTES, SO_RCVBUFFORCE, SOL_UDP, UDP_GRO, UDP_SEGMENT

LOOPBACK = "127.0.0.1"
WAIT_S = 2.0
SEGMENTS, SEGMENT_BYTES = 4, 512
ROOT = "run it as root"
LEAST_FILES, LEAST_PROCESSES, LEAST_MEMORY_BYTES = 64, 100, 3_000_000_000  # with which the demo runs


def findings() -> list[Callable[[], Finding]]:
    """The probes, in the order of the report."""
    return [
        kernel,
        cpus,
        limits,
        root,
        loopback,
        gso,
        gro,
        buffers,
        packet_sockets,
        namespaces,
        veth,
        htb,
        netem,
        mininet_nodes,
    ]


def kernel() -> Finding:
    ok = platform.system() == "Linux"
    return Finding(name="kernel", ok=ok, detail=f"{platform.system()} {platform.release()}", how="Linux is needed")


def cpus() -> Finding:
    count = len(os.sched_getaffinity(0))
    return Finding(name="cpus", ok=count >= 2, detail=str(count), how="with one, timings mean little")


def limits() -> Finding:
    """The limits that the shell has set for a process, which the processes of a run inherit."""
    files = limit_of(resource.RLIMIT_NOFILE)
    said = [f"{files} open files" if files is not None else "any number of open files"]
    few = [f"ulimit -n {USUAL_OPEN_FILES}"] if files is not None and files < LEAST_FILES else []
    processes = limit_of(resource.RLIMIT_NPROC) if os.geteuid() != 0 else None  # it does not hold for root
    if processes is not None and processes < LEAST_PROCESSES:
        said.append(f"{processes} processes and threads of this user")
        few.append("ulimit -u 1000")
    for letter, (which, what) in OF_MEMORY.items():
        most = limit_of(which)
        said += [] if most is None else [f"{most / 1e9:.2g} GB of {what}"]
        few += [f"ulimit -{letter} unlimited"] if most is not None and most < LEAST_MEMORY_BYTES else []
    return Finding(name="limits", ok=not few, detail=join(said), how="; ".join(few))


def root() -> Finding:
    ok = os.geteuid() == 0
    return Finding(name="root", ok=ok, detail="yes" if ok else f"no, user {os.geteuid()}", how="sudo")


# --- UDP ----------------------------------------------------------------------------------------------------------------


def _sockets() -> tuple[socket.socket, socket.socket]:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((LOOPBACK, 0))
    receiver.settimeout(WAIT_S)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    return sender, receiver


def _segmented(name: str, how: str, *, coalesce: bool) -> Finding:
    """Sends four datagrams in one call, and checks that they arrive as four, or coalesced with their size."""
    sender, receiver = _sockets()
    with sender, receiver:
        try:
            if coalesce:
                receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
            size = struct.pack("=H", SEGMENT_BYTES)
            sender.sendmsg([bytes(SEGMENTS * SEGMENT_BYTES)], [(SOL_UDP, UDP_SEGMENT, size)])
            data, ancillary, _, _ = receiver.recvmsg(65536, socket.CMSG_SPACE(4))
        except OSError as error:
            return Finding(name=name, ok=False, detail=str(error), how=how)
    if not coalesce:
        return Finding(name=name, ok=len(data) == SEGMENT_BYTES, detail=f"{SEGMENTS} datagrams in a call", how=how)
    sizes = [
        struct.unpack("=i", value[:4])[0] for level, kind, value in ancillary if (level, kind) == (SOL_UDP, UDP_GRO)
    ]
    ok = len(data) == SEGMENTS * SEGMENT_BYTES and sizes == [SEGMENT_BYTES]
    return Finding(name=name, ok=ok, detail=f"{len(data) // SEGMENT_BYTES} of {SEGMENTS} datagrams in a call", how=how)


def loopback() -> Finding:
    sender, receiver = _sockets()
    with sender, receiver:
        try:
            sender.send(b"sa-atp")
            ok, detail = receiver.recv(64) == b"sa-atp", "a datagram came through"
        except OSError as error:
            ok, detail = False, f"no datagram came through: {error}"
    return Finding(name="udp loopback", ok=ok, detail=detail, how="ip link set lo up; look for firewall rules")


def gso() -> Finding:
    return _segmented("udp gso", "Linux 4.18; without, sending costs more CPU", coalesce=False)


def gro() -> Finding:
    return _segmented("udp gro", "Linux 5.0; without, receiving costs more CPU", coalesce=True)


def buffers() -> Finding:
    how = f"root, or sysctl -w net.core.rmem_max={BUFFER_BYTES}; without, bursts lose more packets"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for option in (SO_RCVBUFFORCE, socket.SO_RCVBUF):
            try:
                probe.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
                break
            except OSError:
                continue
        size = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel counts its own overhead in
    return Finding(name="socket buffers", ok=size >= BUFFER_BYTES, detail=f"{size / 2**20:.1f} MiB", how=how)


# --- interfaces and namespaces --------------------------------------------------------------------------------------------


def packet_sockets() -> Finding:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError as error:
        return Finding(
            name="packet sockets", ok=False, detail=error.strerror or str(error), how=ROOT + ", or CAP_NET_RAW"
        )
    return Finding(name="packet sockets", ok=True, detail="yes")


def _in_namespace(name: str, how: str, *command: str) -> Finding:
    """Runs a command in a network namespace of its own."""
    if needs.find(command[0]) is None:
        return Finding(name=name, ok=False, detail=f"{command[0]} is not on PATH", how=needs.PROGRAMS[command[0]].how)
    ok, said = attempt(namespace.inside(*command), timeout_s=10.0)
    is_root = os.geteuid() == 0
    success = "yes" if is_root else "yes, as root of a user namespace"
    return Finding(name=name, ok=ok, detail=success if ok else said, how=how if is_root else f"{ROOT}; {how}")


def namespaces() -> Finding:
    return _in_namespace("namespaces", "containers need --privileged", "true")


def veth() -> Finding:
    return _in_namespace("veth", "modprobe veth", "ip", "link", "add", "sa0", "type", "veth", "peer", "name", "sa1")


def htb() -> Finding:
    return _in_namespace("htb", "modprobe sch_htb", "tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")


def netem() -> Finding:
    return _in_namespace(
        "netem", "modprobe sch_netem", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"
    )


def mininet_nodes() -> Finding:
    """A node and a link, as Mininet makes them: its helper enters more than a network namespace."""
    name = "mininet nodes"
    if os.geteuid() != 0:
        return Finding(name=name, ok=False, detail="an ordinary user cannot make them", how=ROOT)
    if missing := [each for each in ("mnexec", "ip", "tc") if needs.find(each) is None]:
        return Finding(name=name, ok=False, detail=f"not on PATH: {join(missing)}", how=needs.PROGRAMS[missing[0]].how)
    found = trial.problem()
    return Finding(name=name, ok=not found, detail=found or "two, a link between them, and its queues")

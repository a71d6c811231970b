"""Reads and sets features of a network interface: what `ethtool --offload` does, by its ioctl.

Names are the kernel's (`tx-udp-segmentation`), or patterns of them (`tx-checksum-*`). GROUPS has the short names of the
program ethtool.

pyroute2 does this as well, by netlink, but importing it takes each process 0.3 s of CPU time (0.9.7).
"""

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from sa_atp.basics.errors import SaAtpError

SIOCETHTOOL = 0x8946
GET_STRINGS, GET_STRING_COUNTS, GET_FEATURES, SET_FEATURES = 0x1B, 0x37, 0x3A, 0x3B  # linux/ethtool.h
FEATURE_NAMES = 4  # ETH_SS_FEATURES: which set of strings
NAME_BYTES = 32
INTERFACE_NAME_BYTES = 15  # IFNAMSIZ, and a zero
CLONE_NEWNET = 0x40000000

GROUPS = {
    "rx": "rx-checksum",
    "tx": "tx-checksum-*",
    "sg": "tx-scatter-gather*",
    "tso": "tx-tcp*-segmentation",
    "gso": "tx-generic-segmentation",
    "gro": "rx-gro",
}


def features(interface: str, via: socket.socket | None = None) -> dict[str, bool]:
    """Reads which features of an interface are on, by the kernel's names.

    Args: via: see `set_features`. Raises: SaAtpError.
    """
    with _reached(via) as control:
        active, _ = _read(control, interface)
        return {name: name in active for name in _names(control, interface)}


def set_features(interface: str, wanted: Mapping[str, bool], via: socket.socket | None = None) -> None:
    """Switches features on and off, except those that the interface does not have or cannot change.

    Args:
        wanted: by the kernel's names, patterns of them, or names of GROUPS; of several for a feature the last one counts.
        via: any socket of the network namespace that the interface is in (see `socket_in`); None: this process's.

    Raises: SaAtpError: no such interface, no permission, or no feature of that name.
    """
    with _reached(via) as control:
        names = _names(control, interface)
        _, changeable = _read(control, interface)
        valid = [0] * _blocks(len(names))
        requested = [0] * _blocks(len(names))
        for name, on in wanted.items():
            matching = [i for i, known in enumerate(names) if fnmatchcase(known, GROUPS.get(name, name))]
            if not matching:
                raise SaAtpError(f"{interface}: this kernel knows no feature {name}")
            for i in matching:
                if names[i] in changeable:
                    valid[i // 32] |= 1 << i % 32
                    requested[i // 32] = requested[i // 32] & ~(1 << i % 32) | on << i % 32
        pairs = [word for pair in zip(valid, requested, strict=True) for word in pair]
        _ask(control, interface, bytearray(struct.pack(f"=II{len(pairs)}I", SET_FEATURES, len(valid), *pairs)))


def socket_in(pid: int) -> socket.socket:
    """Opens a socket in the network namespace of another process. Raises: SaAtpError."""
    found: list[socket.socket | OSError] = []

    def enter() -> None:
        # only this thread enters the namespace, and it ends with the thread
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            namespace = os.open(Path("/proc", str(pid), "ns", "net"), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(namespace, CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                found.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            finally:
                os.close(namespace)
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise SaAtpError(f"the network namespace of process {pid} cannot be entered: {found[0].strerror}")
    return found[0]


# --- the kernel's side --------------------------------------------------------------------------------------------------


@contextmanager
def _reached(via: socket.socket | None) -> Iterator[socket.socket]:
    if via is not None:
        yield via
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        yield control


def _ask(control: socket.socket, interface: str, data: bytearray) -> bytearray:
    """Sends one request. Returns: the answer, which the kernel writes over the request. Raises: SaAtpError."""
    name = interface.encode()
    if not 0 < len(name) <= INTERFACE_NAME_BYTES:
        raise SaAtpError(f"{interface!r}: an interface's name has 1 to {INTERFACE_NAME_BYTES} bytes")
    answer = (ctypes.c_char * len(data)).from_buffer(data)
    # struct ifreq: a name, and a union of which we use a pointer
    request = struct.pack("=16sQ16x", name, ctypes.addressof(answer))
    try:
        fcntl.ioctl(control, SIOCETHTOOL, request)
    except OSError as error:
        raise SaAtpError(f"{interface}: the kernel does not set or tell its features: {error.strerror}") from None
    return data


def _names(control: socket.socket, interface: str) -> list[str]:
    """The names of all features that this kernel knows, in the order of their numbers."""
    counted = _ask(control, interface, bytearray(struct.pack("=IIQI", GET_STRING_COUNTS, 0, 1 << FEATURE_NAMES, 0)))
    (count,) = struct.unpack_from("=I", counted, 16)
    head = struct.pack("=III", GET_STRINGS, FEATURE_NAMES, count)
    told = _ask(control, interface, bytearray(head + bytes(count * NAME_BYTES)))
    places = range(len(head), len(told), NAME_BYTES)
    return [bytes(told[place : place + NAME_BYTES]).rstrip(b"\0").decode() for place in places]


def _blocks(count: int) -> int:
    return -(-count // 32)


def _read(control: socket.socket, interface: str) -> tuple[set[str], set[str]]:
    """Reads which features are on, and which can be changed."""
    names = _names(control, interface)
    blocks = _blocks(len(names))
    told = _ask(control, interface, bytearray(struct.pack("=II", GET_FEATURES, blocks) + bytes(16 * blocks)))
    active, changeable = set(), set()
    for i, name in enumerate(names):
        available, _, is_active, never_changed = struct.unpack_from("=4I", told, 8 + i // 32 * 16)
        bit = 1 << i % 32
        if is_active & bit:
            active.add(name)
        if available & bit and not never_changed & bit:
            changeable.add(name)
    return active, changeable

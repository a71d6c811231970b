"""Runs a command in a network of its own: python -m tests.helpers.alone COMMAND...

Nothing is in it but loopback, which also has the addresses 10.0.0.0/8. So every port is free there, and nothing that
runs in it can be reached from outside. Needs root, or a kernel that lets users make namespaces; else it ends with 77.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CANNOT = 77
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, SIOCSIFADDR = 0x8914, 0x8916
IFF_UP = 1


def enter() -> None:
    """Raises: OSError."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET if user == 0 else CLONE_NEWNET | CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
        address = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("10.0.0.1"))
        fcntl.ioctl(any_socket, SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))


def main() -> None:
    try:
        enter()
    except OSError as error:
        print(f"no network of its own: {error}", file=sys.stderr)
        sys.exit(CANNOT)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()

"""A UDP socket that takes and gives datagrams in bursts.

Out: one system call sends a burst, segmented by the kernel (UDP_SEGMENT), unless the route cannot do that. In: one call
brings a burst, coalesced by the kernel (UDP_GRO). Python works per burst. Compiled code, where it is used, makes these
calls itself; where datagrams go one by one, that takes as much CPU time as sendmmsg would.
"""

import array
import errno
import fcntl
import os
import select
import socket
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa_atp.basics.arrays import ByteRows, Octets
from sa_atp.basics.errors import UserError
from sa_atp.net.clock import now_us
from sa_atp.net.sockets.compiled_bursts import PackedReceive, SegmentedSend
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.frames import CS5, ECT0

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
COALESCED = (SOL_UDP, UDP_GRO)  # level and kind of the control message with the size of coalesced datagrams
_NUMBER = struct.Struct("=i")
SIOCOUTQ = 0x5411
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33

BUFFER_BYTES = 8 << 20  # asked of the kernel; without CAP_NET_ADMIN it gives what net.core.rmem_max allows
QUEUED_BYTES = 2304  # that a datagram of ordinary size takes of it, with the kernel's bookkeeping
FULL_WAIT_MS = 10  # for room in the kernel's buffer, before it is tried again
FULL_US = 50_000  # for which a full buffer holds up its sender, who has timers: it may stay full, where nothing leaves
MAX_SEGMENTS = 64  # UDP_MAX_SEGMENTS of older kernels
MAX_SEND_BYTES = 65_000  # of one segmented send, below the limit of an IPv4 packet
RECEIVE_BYTES = 65_536
RECEIVE_MESSAGES = 64  # of a look
URGENT = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", CS5 << 2 | ECT0))]
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3  # "don't fragment" in every packet
IP_RECVERR, MSG_ERRQUEUE = 11, 0x2000
REPORTED = (socket.IPPROTO_IP, IP_RECVERR)  # level and kind of the control message with what an ICMP message says
# struct sock_extended_err: errno, origin, type and code; then who has sent the ICMP message, as struct sockaddr_in
_EXTENDED_ERROR = struct.Struct("=IBBBxII2x2x4s8x")
MOST_REFUSALS = 64  # that are looked at in a turn
PORT_UNREACHABLE = (errno.ECONNREFUSED, 2, 3, 3)  # from ICMP (RFC 792)


def segments(size: int) -> int:
    """Datagrams of so many bytes that one segmented send takes."""
    return min(MAX_SEGMENTS, max(1, MAX_SEND_BYTES // size))


@dataclass(slots=True)
class SocketStats:
    sent: int = 0
    received: int = 0
    send_errors: int = 0
    """Datagrams that the kernel refused, or had no room for; the protocol sends them again."""


class UdpSocket:
    def __init__(self, address: Address = ("0.0.0.0", 0)) -> None:
        """Binds. Raises: UserError if the address cannot be had."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind(address)
        except (OSError, OverflowError) as error:
            self.socket.close()
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot use UDP address {address[0]}:{address[1]}: {reason}") from None
        self.socket.setblocking(False)
        self._set(socket.IPPROTO_IP, socket.IP_TOS, ECT0)
        # a switch cannot add up what arrives in fragments
        self._set(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        for forced, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            if not self._set(socket.SOL_SOCKET, forced, BUFFER_BYTES):
                self._set(socket.SOL_SOCKET, plain, BUFFER_BYTES)
        self._coalesces = self._set(SOL_UDP, UDP_GRO, 1)
        self._segments = True  # until a route refuses
        self._full_until_us: int | None = None  # how long this call to send waits; None: it has not waited yet
        self._rows = np.empty((RECEIVE_MESSAGES, RECEIVE_BYTES), np.uint8)
        self._packed: PackedReceive | None = None
        self._segmented: SegmentedSend | None = None
        self._count = array.array("i", [0])
        self.is_drained = True  # whether the last look took all that was there
        self.reports_refusals = False
        self.too_long: tuple[Address, int] | None = None
        """Where datagrams of so many bytes did not leave for: the way there does not carry them."""
        self.stats = SocketStats()
        _open_sockets.add(self)

    def _set(self, level: int, option: int, value: int) -> bool:
        try:
            self.socket.setsockopt(level, option, value)
        except OSError:
            return False
        return True

    @property
    def address(self) -> Address:
        ip, port = self.socket.getsockname()
        return str(ip), int(port)

    def fileno(self) -> int:
        return self.socket.fileno()

    def most_gathered(self, size: int = 0) -> int:
        """How many datagrams of so many bytes may wait here: half of what there is room for, if each comes by itself."""
        each = max(QUEUED_BYTES, 2 * size)
        return max(1, self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // (2 * each))

    def close(self) -> None:
        self.socket.close()

    def unsent_bytes(self) -> int:
        """What has been sent and has not left this host, in the kernel's reckoning."""
        fcntl.ioctl(self.socket, SIOCOUTQ, self._count)
        return self._count[0]

    def use(self, kernels: Any) -> None:
        """From now on takes and gives bursts by compiled code, see net/sockets/socket_kernels.py."""
        self._packed = PackedReceive(kernels)
        self._segmented = SegmentedSend(kernels)
        self._rows = self._rows[:0]

    def compiled(self) -> tuple[PackedReceive, SegmentedSend] | None:
        """What takes and gives bursts here by compiled code; None: that is not used, or a route refuses segmented sends."""
        if self._packed is None or self._segmented is None or not self._segments:
            return None
        return self._packed, self._segmented

    # --- in -----------------------------------------------------------------------------------------------------------

    def receive(self) -> list[Burst]:
        """What has arrived, up to a bound; empty if nothing has. The arrays are valid until the next call."""
        if self._packed is not None:
            found, self.is_drained = self._packed.receive(self.fileno())
            self.stats.received += sum(map(len, found))
            return found
        bursts: list[Burst] = []
        for row in self._rows:
            try:
                count, control, _, sender = self.socket.recvmsg_into([row.data], socket.CMSG_SPACE(_NUMBER.size))
            except BlockingIOError:
                self.is_drained = True
                return bursts
            except ConnectionError:
                continue  # an ICMP error of an earlier send; nothing is lost by it here
            size = next(
                (_NUMBER.unpack_from(data)[0] for level, kind, data in control if (level, kind) == COALESCED), 0
            )
            bursts += self._split(sender, row[:count], size or count)
        self.is_drained = False
        return bursts

    def _split(self, address: Address, data: Octets, size: int) -> list[Burst]:
        """Datagrams of one size that the kernel has coalesced; the last one may be shorter."""
        if not len(data):
            return []
        whole, rest = divmod(len(data), size)
        self.stats.received += whole + (rest > 0)
        found = [Burst(address, data[: whole * size].reshape(whole, size))] if whole else []
        return [*found, Burst(address, data[whole * size :].reshape(1, rest))] if rest else found

    # --- refusals -----------------------------------------------------------------------------------------------------

    def report_refusals(self, wanted: bool) -> None:
        """Says whether `refused` is to find out what hosts refuse from now on.

        Only while somebody wants to know: meanwhile the kernel also reports packets that its own queues have dropped.
        """
        if wanted != self.reports_refusals:
            self.reports_refusals = wanted
            self._set(socket.IPPROTO_IP, IP_RECVERR, int(wanted))

    def refused(self) -> set[Address]:
        """Addresses to which something was sent, and whose host has answered that nobody has that port. (RFC 1122, 3.2.2.1)

        What a router or a firewall in between says is left out: it does not know what goes on in the host.
        """
        found: set[Address] = set()
        for _ in range(MOST_REFUSALS if self.reports_refusals else 0):
            try:
                _, control, _, address = self.socket.recvmsg(1, 256, MSG_ERRQUEUE)
            except OSError:  # there is no more
                break
            for level, kind, data in control:
                if (level, kind) == REPORTED and len(data) >= _EXTENDED_ERROR.size:
                    *said, _, _, speaker = _EXTENDED_ERROR.unpack_from(data)
                    if tuple(said) == PORT_UNREACHABLE and socket.inet_ntoa(speaker) == address[0]:
                        found.add(address)
        return found

    # --- out ----------------------------------------------------------------------------------------------------------

    def send(self, bursts: Sequence[Burst]) -> None:
        """Sends everything, waiting a moment where the kernel's buffer is full.

        What it refuses, or has no room for when FULL_US have passed, is counted and lost.
        """
        self._full_until_us = None
        if (
            self.reports_refusals
        ):  # an error that is reported, and belongs to an earlier datagram, must not cost this one
            self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        for burst in bursts:
            data = np.ascontiguousarray(burst.data)
            per_call = segments(data.shape[1]) if self._segments else 1
            done = 0
            if self._segmented is not None and len(data) > 1 and not burst.urgent:
                done = self._segmented.send(self.fileno(), burst.address, data, per_call)
                self.stats.sent += done
            for first in range(done, len(data), per_call):
                self._send(burst.address, data[first : first + per_call], URGENT if burst.urgent else [])

    def _send(self, address: Address, data: ByteRows, control: list[tuple[int, int, bytes]]) -> None:
        while len(data):
            try:
                if self._segments and len(data) > 1:
                    self._send_segmented(address, data)
                    taken = len(data)
                else:
                    self.socket.sendmsg([data[0].data], control, 0, address)
                    taken = 1
            except BlockingIOError:
                if self._wait_for_room():
                    continue
                self.stats.send_errors += len(data)
                return
            except ConnectionError:
                continue  # the error belongs to an earlier datagram: this one has not been sent yet
            except OSError as error:
                if self._segments and len(data) > 1 and error.errno in (errno.EIO, errno.EINVAL, errno.ENOPROTOOPT):
                    self._segments = False
                    continue
                if error.errno == errno.EMSGSIZE:
                    self.too_long = address, data.shape[1]
                self.stats.send_errors += len(data)
                return
            self.stats.sent += taken
            data = data[taken:]

    def _wait_for_room(self) -> bool:
        """False: it has taken too long."""
        now = now_us()
        if self._full_until_us is None:
            self._full_until_us = now + FULL_US
        if now >= self._full_until_us:
            return False
        writable = select.poll()
        writable.register(self.socket, select.POLLOUT)
        writable.poll(FULL_WAIT_MS)
        return True

    def _send_segmented(self, address: Address, data: ByteRows) -> None:
        size = struct.pack("=H", data.shape[1])
        self.socket.sendmsg([data.data], [(SOL_UDP, UDP_SEGMENT, size)], 0, address)


_open_sockets: "weakref.WeakSet[UdpSocket]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A connection stays with the process that has made it. Were its socket open in a child as well, such as a worker of a
    DataLoader, nobody could see that the process has ended as long as the child lives.
    """
    for each in list(_open_sockets):
        each.close()


os.register_at_fork(after_in_child=_close_in_child)

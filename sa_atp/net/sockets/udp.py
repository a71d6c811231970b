"""A UDP socket that sends and receives datagrams in bursts, so that Python works per burst.

One system call sends a burst, segmented by the kernel (UDP_SEGMENT), unless the route cannot do that. One call receives a
burst coalesced by the kernel (UDP_GRO). Python works per burst. Compiled code, where it is used, makes these calls itself;
with single datagrams it takes as much CPU time as sendmmsg would.
"""

import array
import errno
import fcntl
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa_atp.basics.arrays import ByteRows, Octets
from sa_atp.basics.errors import UserError
from sa_atp.net.clock import now_us
from sa_atp.net.shared_memory.channel import Channel
from sa_atp.net.sockets.compiled_bursts import PackedReceive, SegmentedSend
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.frames import CS5, ECT0

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
COALESCED = (SOL_UDP, UDP_GRO)  # level and kind of the control message with the size of coalesced datagrams
_NUMBER = struct.Struct("=i")
SIOCOUTQ = 0x5411
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33

BUFFER_BYTES = 8 << 20  # requested; without CAP_NET_ADMIN the kernel grants what net.core.rmem_max allows
QUEUED_BYTES = 2304  # of the buffer that a datagram of ordinary size takes, with the kernel's bookkeeping
FULL_WAIT_MS = 10  # between attempts while the kernel's buffer is full
SHARED_WAIT_S = 0.0002  # ... while the ring to the switch is full
FULL_US = 50_000  # that a full buffer may block its sender, whose timers must run: a buffer may stay full
MAX_SEGMENTS = 64  # UDP_MAX_SEGMENTS of older kernels
MAX_SEND_BYTES = 65_000  # of one segmented send, below the limit of an IPv4 packet
RECEIVE_BYTES = 65_536
RECEIVE_MESSAGES = 64  # at most, by one call to `receive`
OTHERS_TURN = 8  # receives, after which others than the switch are heard however much it sends
URGENT = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", CS5 << 2 | ECT0))]
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3  # "don't fragment" in every packet
IP_RECVERR, MSG_ERRQUEUE = 11, 0x2000
REPORTED = (socket.IPPROTO_IP, IP_RECVERR)  # level and kind of the control message that reports an ICMP message
# struct sock_extended_err: errno, origin, type and code; then the sender of the ICMP message, as struct sockaddr_in
_EXTENDED_ERROR = struct.Struct("=IBBBxII2x2x4s8x")
MOST_REFUSALS = 64  # read in a turn
PORT_UNREACHABLE = (errno.ECONNREFUSED, 2, 3, 3)  # from ICMP (RFC 792)


def segments(size: int) -> int:
    """How many datagrams of `size` bytes one segmented send takes."""
    return min(MAX_SEGMENTS, max(1, MAX_SEND_BYTES // size))


@dataclass(slots=True)
class SocketStats:
    sent: int = 0
    received: int = 0
    send_errors: int = 0
    """Datagrams that the kernel refused, or had no room for; the protocol sends them again."""
    too_long: int = 0
    """Datagrams that were longer than the MTU, part of `send_errors`."""


class UdpSocket:
    def __init__(self, address: Address = ("0.0.0.0", 0)) -> None:
        """Binds. Raises: UserError: the address cannot be bound."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind(address)
        except (OSError, OverflowError) as error:
            self.socket.close()
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot use UDP address {address[0]}:{address[1]}: {reason}") from None
        self.socket.setblocking(False)
        self._set(socket.IPPROTO_IP, socket.IP_TOS, ECT0)
        # a switch cannot aggregate IP fragments
        self._set(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        for forced, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            if not self._set(socket.SOL_SOCKET, forced, BUFFER_BYTES):
                self._set(socket.SOL_SOCKET, plain, BUFFER_BYTES)
        self._set(SOL_UDP, UDP_GRO, 1)
        self._segments = True  # until a route refuses segmented sends
        self._full_until_us: int | None = None  # when this call to `send` stops waiting; None: it has not waited yet
        self._rows = np.empty((RECEIVE_MESSAGES, RECEIVE_BYTES), np.uint8)
        self._packed: PackedReceive | None = None
        self._segmented: SegmentedSend | None = None
        self._count = array.array("i", [0])
        self.channel: Channel | None = None
        """Shared memory, in which datagrams to and from the switch on this machine travel; None: they do as all others."""
        self._looks = 0
        self.is_drained = True  # whether the last receive took all that was there
        self.reports_refusals = False
        self.too_long: tuple[Address, int] | None = None
        """Receiver and size of datagrams that the kernel refused because the path's MTU is smaller; None: none."""
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
        """How many datagrams of `size` bytes may wait in the receive buffer: half of its room, if none are coalesced."""
        each = max(QUEUED_BYTES, 2 * size)
        return max(1, self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // (2 * each))

    def close(self) -> None:
        self.socket.close()
        self.drop_channel()

    def drop_channel(self) -> None:
        """From now on datagrams to and from the switch travel as all others."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def unsent_bytes(self) -> int:
        """Bytes that have been sent and have not left this host, as the kernel counts them."""
        fcntl.ioctl(self.socket, SIOCOUTQ, self._count)
        return self._count[0]

    def use_kernels(self, kernels: Any) -> None:
        """From now on receives and sends bursts by compiled code, see net/sockets/socket_kernels.py."""
        self._packed = PackedReceive(kernels)
        self._segmented = SegmentedSend(kernels)
        self._rows = self._rows[:0]

    def compiled(self) -> tuple[PackedReceive, SegmentedSend] | None:
        """The compiled code of this socket; None: it is not used, or a route refuses segmented sends."""
        if self._packed is None or self._segmented is None or not self._segments:
            return None
        return self._packed, self._segmented

    # --- in -----------------------------------------------------------------------------------------------------------

    def receive(self) -> list[Burst]:
        """Receives what has arrived, up to a bound; the arrays are valid until the next call."""
        shared: list[Burst] = []
        if self.channel is not None:
            shared = self.channel.receive()
            self.stats.received += sum(map(len, shared))
            self._looks += 1
            if shared and self._looks % OTHERS_TURN:
                self.is_drained = not self.channel.has_arrived()
                return shared
        if self._packed is not None:
            found, self.is_drained = self._packed.receive(self.fileno())
            self.stats.received += sum(map(len, found))
            if shared:
                self.is_drained = False
            return shared + found
        bursts: list[Burst] = []
        for row in self._rows:
            try:
                count, control, _, sender = self.socket.recvmsg_into([row.data], socket.CMSG_SPACE(_NUMBER.size))
            except BlockingIOError:
                self.is_drained = True
                return bursts
            except ConnectionError:
                continue  # an ICMP error of an earlier send
            size = next(
                (_NUMBER.unpack_from(data)[0] for level, kind, data in control if (level, kind) == COALESCED), 0
            )
            bursts += self._split(sender, row[:count], size or count)
        self.is_drained = False
        return bursts

    def _split(self, address: Address, data: Octets, size: int) -> list[Burst]:
        """Bursts of datagrams that the kernel has coalesced: all have one size, but the last one may be shorter."""
        if not len(data):
            return []
        whole, rest = divmod(len(data), size)
        self.stats.received += whole + (rest > 0)
        found = [Burst(address, data[: whole * size].reshape(whole, size))] if whole else []
        return [*found, Burst(address, data[whole * size :].reshape(1, rest))] if rest else found

    # --- refusals -----------------------------------------------------------------------------------------------------

    def report_refusals(self, wanted: bool) -> None:
        """Turns `refused` on or off. While it is on, the kernel also reports packets that its own queues drop."""
        if wanted != self.reports_refusals:
            self.reports_refusals = wanted
            self._set(socket.IPPROTO_IP, IP_RECVERR, int(wanted))

    def refused(self) -> set[Address]:
        """Takes the addresses whose hosts have answered that the port is unreachable. (RFC 1122, section 3.2.2.1)

        ICMP messages of routers and firewalls are ignored: they know nothing about the host's ports.
        """
        found: set[Address] = set()
        for _ in range(MOST_REFUSALS if self.reports_refusals else 0):
            try:
                _, control, _, address = self.socket.recvmsg(1, 256, MSG_ERRQUEUE)
            except OSError:  # no more reports
                break
            for level, kind, data in control:
                if (level, kind) == REPORTED and len(data) >= _EXTENDED_ERROR.size:
                    *said, _, _, speaker = _EXTENDED_ERROR.unpack_from(data)
                    if tuple(said) == PORT_UNREACHABLE and socket.inet_ntoa(speaker) == address[0]:
                        found.add(address)
        return found

    # --- out ----------------------------------------------------------------------------------------------------------

    def send(self, bursts: Sequence[Burst]) -> None:
        """Sends bursts; waits for at most FULL_US while the kernel's buffer is full.

        Datagrams that the kernel refuses, or has no room for after that time, are counted and lost.
        """
        self._full_until_us = None
        if self.reports_refusals:  # a reported error of an earlier datagram must not cost this one
            self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        for burst in bursts:
            data = np.ascontiguousarray(burst.data)
            if self.channel is not None and burst.address == self.channel.switch:
                self._send_shared(self.channel, data)
                continue
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
                continue  # an error of an earlier datagram: this one has not been sent yet
            except OSError as error:
                if self._segments and len(data) > 1 and error.errno in (errno.EIO, errno.EINVAL, errno.ENOPROTOOPT):
                    self._segments = False
                    continue
                if error.errno == errno.EMSGSIZE:
                    self.too_long = address, data.shape[1]
                    self.stats.too_long += len(data)
                self.stats.send_errors += len(data)
                return
            self.stats.sent += taken
            data = data[taken:]

    def _send_shared(self, channel: Channel, data: ByteRows) -> None:
        done = channel.send(data)
        while done < len(data) and self._may_wait():
            time.sleep(SHARED_WAIT_S)
            done = channel.send(data, done)
        self.stats.sent += done
        self.stats.send_errors += len(data) - done

    def _may_wait(self) -> bool:
        """Returns False if this call to `send` has waited too long for room."""
        now = now_us()
        if self._full_until_us is None:
            self._full_until_us = now + FULL_US
        return now < self._full_until_us

    def _wait_for_room(self) -> bool:
        """Waits for room in the kernel's buffer. Returns: False if this call to `send` has waited too long."""
        if not self._may_wait():
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
    """Closes sockets in a forked child, such as a DataLoader's worker: while it kept them open, no peer could see that the
    process which owns the connection has ended.
    """
    for each in list(_open_sockets):
        each.close()


os.register_at_fork(after_in_child=_close_in_child)

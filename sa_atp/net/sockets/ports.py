"""A switch's ports: network interfaces, or UDP sockets.

A port takes and gives Ethernet frames in batches: uint8[n, row] and the length of each.
"""

import contextlib
import errno
import fcntl
import socket
import struct
from pathlib import Path
from typing import Protocol

import numpy as np

from sa_atp.basics.arrays import ByteRows, Lengths
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.net.sockets import offload
from sa_atp.net.sockets.mmsg import GatherVector, MessageVector
from sa_atp.net.sockets.offload import Gathered
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.frames import HEADERS_BYTES, Endpoint, address_of, flows, is_datagram, mac_for, wrap
from sa_atp.protocol.packets.spec import UDP_PORT
from sa_atp.switches.embedded.pipeline import ROW_BYTES

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 1, 1
PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 15, 23
SIOCOUTQ = 0x5411
# Bytes that a queued frame takes of the socket's buffer, with the kernel's bookkeeping; a larger frame takes more in
# proportion. A super-packet has the bookkeeping once, and its data in pages of its own.
QUEUED_FRAME_BYTES, ORDINARY_BYTES = 2304, 1514
QUEUED_PACKET_BYTES = 3072
RECEIVE_PACKETS = 64  # of one receive
RECEIVE_BYTES = 65_600  # of each: the largest IPv4 packet, with all headers before it
NO_LENGTHS = np.zeros(0, np.int64)

Frames = tuple[ByteRows, Lengths]


class Port(Protocol):
    """A port of a switch; `waiting` is the number of frames in its queue."""

    def fileno(self) -> int: ...
    def receive(self) -> Frames | None: ...
    def send(self, frames: ByteRows, lengths: Lengths) -> None: ...
    def waiting(self) -> int: ...
    def close(self) -> None: ...
    def describe(self) -> str: ...


class InterfacePort:
    """A network interface, through a packet socket. Needs CAP_NET_RAW.

    Frames of one flow cross it as super-packets if the kernel supports that, see `offload`.
    """

    def __init__(self, interface: str, batch: int = 256, *, joins: bool = True) -> None:
        """Args:
        batch: packets to send in one call.
        joins: whether leaving frames may be joined to super-packets. If the other end is not a Linux network stack, switch
            that off here, or with `ethtool -K INTERFACE tx off`.

        Raises: UserError: no such interface; MissingPartError: not allowed.
        """
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        except PermissionError:
            raise MissingPartError(
                f"port on {interface}: packet sockets need root or CAP_NET_RAW; --udp ports work without"
            ) from None
        self._socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)  # only before the socket is bound
        try:
            self._socket.bind((interface, ETH_P_ALL))
        except OSError as error:
            self._socket.close()
            raise UserError(f"port on {interface}: {error.strerror}; `ip link` lists the interfaces") from None
        self._socket.setblocking(False)
        index = socket.if_nametoindex(interface)
        self._socket.setsockopt(
            SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("=iHH8s", index, PACKET_MR_PROMISC, 0, b"")
        )
        # packets that the host itself sends through the interface are not for the switch
        self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        for option in (33, 32):  # SO_RCVBUFFORCE, SO_SNDBUFFORCE
            with contextlib.suppress(OSError):  # smaller buffers only lose more packets of bursts
                self._socket.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
        self.interface = interface
        self.oversized = 0
        self.refused = 0
        self.too_long = 0  # to leave: longer than the interface's MTU
        self.joins = joins
        self._in = MessageVector(RECEIVE_PACKETS)
        self._out = GatherVector(batch)
        self._packets = np.empty((0, 0), np.uint8)
        self._rows = np.zeros((0, ROW_BYTES), np.uint8)
        self._frame_cost = float(QUEUED_FRAME_BYTES)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> Frames | None:
        """Receives a batch of frames, valid until the next call; None if there are none."""
        if not len(self._packets):
            self._packets = np.empty((RECEIVE_PACKETS, RECEIVE_BYTES), np.uint8)
        lengths = self.receive_packets(self._packets)
        if not len(lengths):
            return None
        packets = self._packets[: len(lengths)]
        counts = offload.frames_in(packets, lengths, ROW_BYTES)
        self.oversized += int(np.count_nonzero(counts == 0))
        total = int(counts.sum())
        if total > len(self._rows):
            self._rows = np.zeros((2 * total, ROW_BYTES), np.uint8)
        return self._rows[:total], offload.cut(packets, lengths, counts, self._rows[:total])

    def receive_packets(self, packets: ByteRows) -> Lengths:
        """Receives what waits, a row each: a struct virtio_net_hdr, then the frame or super-packet as the kernel has it.
        `receive` cuts them.

        Args: packets: uint8[RECEIVE_PACKETS or more, RECEIVE_BYTES]. Returns: the length of each; -1 for a lost packet.
        """
        try:
            return self._in.receive(self.fileno(), packets[:RECEIVE_PACKETS])
        except BlockingIOError:
            return NO_LENGTHS

    def send(self, frames: ByteRows, lengths: Lengths) -> None:
        """Sends a batch; frames that the interface's queue does not take are lost, as on any switch."""
        if len(frames) and not self.send_packets(offload.gather(frames, lengths, join=self.joins)):
            self.send(frames, lengths)

    def send_packets(self, packets: Gathered) -> bool:
        """Sends a batch of packets.

        Returns: False if nothing was sent because the kernel knows no super-packets; the port then makes no more of them.
        """
        count = len(packets.counts)
        ends = np.cumsum(packets.counts)
        # the socket reports only the bytes that wait, so the bytes of a waiting frame are an average
        frames = int(packets.frames.sum())
        size = float(packets.sizes.sum())
        alone = QUEUED_FRAME_BYTES + max(0.0, size / frames - ORDINARY_BYTES)
        self._frame_cost += (min((QUEUED_PACKET_BYTES * count + size) / frames, alone) - self._frame_cost) / 4
        first = part = 0
        while first < count:
            try:
                first += self._out.send(
                    self.fileno(), packets.bases[part:], packets.sizes[part:], packets.counts[first:]
                )
            except OSError as error:
                if self.joins and first == 0 and error.errno == errno.EINVAL:
                    self.joins = False
                    return False
                lost = int(packets.frames[first:].sum())
                if error.errno == errno.EMSGSIZE:
                    self.too_long += lost
                else:
                    self.refused += lost
                return True
            part = int(ends[first - 1])
        return True

    def waiting(self) -> int:
        """An estimate of the frames that wait in the interface's queue."""
        queued = struct.unpack("=i", fcntl.ioctl(self._socket, SIOCOUTQ, b"\0" * 4))[0]
        return int(queued / self._frame_cost)

    def close(self) -> None:
        self._socket.close()

    def describe(self) -> str:
        return self.interface


class UdpPort:
    """A UDP socket in place of a link to an IP network, for which neither an interface nor root is needed.

    An arriving datagram becomes a frame from its sender to the SA-ATP port. A leaving frame becomes a datagram to the
    address that the program wrote into it, so the program's addressing routes packets, as on a real network.
    """

    def __init__(self, address: Address, batch: int = 2048) -> None:
        """Raises: UserError: the address cannot be bound."""
        self._socket = UdpSocket(address)
        bound = self._socket.address
        self.me = Endpoint(mac_for(bound[0]), (bound[0], UDP_PORT))
        self.joins = True
        self.not_datagrams = 0
        self.oversized = 0
        self.refused_in_loop = self.too_long_in_loop = 0  # by the compiled loop, which calls the kernel itself
        self._rows = np.zeros((batch, ROW_BYTES), np.uint8)

    @property
    def address(self) -> Address:
        return self._socket.address

    @property
    def refused(self) -> int:
        """Datagrams that the kernel did not take, except for those that were too long."""
        return self.refused_in_loop + self._socket.stats.send_errors - self._socket.stats.too_long

    @property
    def too_long(self) -> int:
        """Datagrams that were longer than the MTU."""
        return self.too_long_in_loop + self._socket.stats.too_long

    def fileno(self) -> int:
        return self._socket.fileno()

    def frame_target(self) -> bytes:
        """The destination of frames that are made of datagrams: MAC address, IP address and UDP port."""
        return self.me.mac.to_bytes(6, "big") + socket.inet_aton(self.me.address[0]) + UDP_PORT.to_bytes(2, "big")

    def receive(self) -> Frames | None:
        bursts = [b for b in self._socket.receive() if self._fits(b)]
        total = sum(len(burst) for burst in bursts)
        if total == 0:
            return None
        if total > len(self._rows):
            self._rows = np.zeros((2 * total, ROW_BYTES), np.uint8)
        lengths = np.empty(total, np.int64)
        first = 0
        for burst in bursts:
            end = first + len(burst)
            source = Endpoint(mac_for(burst.address[0]), burst.address)
            wrap(burst.data, source, self.me, self._rows[first:end])
            lengths[first:end] = HEADERS_BYTES + burst.data.shape[1]
            first = end
        return self._rows[:total], lengths

    def _fits(self, burst: Burst) -> bool:
        if burst.data.shape[1] + HEADERS_BYTES <= ROW_BYTES:
            return True
        self.oversized += len(burst)
        return False

    def send(self, frames: ByteRows, lengths: Lengths) -> None:
        good = is_datagram(frames, lengths)
        if not good.all():
            self.not_datagrams += int((~good).sum())
            frames, lengths = frames[good], lengths[good]
        if not len(frames):
            return
        # Datagrams to one receiver stay in order: an answer that overtook a result would look like a loss.
        receivers = flows(frames)
        bursts = []
        for receiver in np.unique(receivers):
            rows = np.flatnonzero(receivers == receiver)
            breaks = np.flatnonzero(np.diff(lengths[rows])) + 1
            bursts += [
                Burst(address_of(int(receiver)), frames[run, HEADERS_BYTES : lengths[run[0]]])
                for run in np.split(rows, breaks)
            ]
        self._socket.send(bursts)

    def waiting(self) -> int:
        return 0  # when `send` returns, a datagram is at its receiver, or refused

    def close(self) -> None:
        self._socket.close()

    def describe(self) -> str:
        return "udp {}:{}".format(*self.address)


class CaptureWriter:
    """Writes the frames of one port to a pcap file, both directions."""

    def __init__(self, path: Path) -> None:
        """Raises: UserError: the file cannot be written."""
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        self._file.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, ROW_BYTES, 1))

    def write(self, frames: ByteRows, lengths: Lengths, now_us: int) -> None:
        for row, length in zip(frames, lengths.tolist(), strict=True):
            self._file.write(struct.pack("=IIII", now_us // 1_000_000, now_us % 1_000_000, length, length))
            self._file.write(row[:length].tobytes())
        self._file.flush()

    def close(self) -> None:
        self._file.close()

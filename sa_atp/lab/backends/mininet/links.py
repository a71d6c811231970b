"""Interfaces of emulated links: a rate by htb, a queue in front of it, and only the offloads that the switch handles.

Control messages have a queue of their own, as operators have for signalling.

With offloads, a veth hands over packets without checksums, and super-packets larger than the link's MTU. BMv2, which reads
frames from the interface, would forward both unchanged. The embedded switch handles them (net/sockets/offload.py): there,
datagrams of one flow may cross a link as one super-packet. TCP senders segment by themselves.
"""

from contextlib import closing
from typing import Any

from sa_atp.lab.backends.mininet.api import Intf
from sa_atp.lab.backends.mininet.layout import BACKGROUND_MASK, BACKGROUND_PORTS, LinkQuality
from sa_atp.net.sockets import ethtool

OFFLOADS = ("rx", "tx", "sg", "tso", "gso", "gro")
SUPER_PACKETS = ("tx", "sg", "tx-udp-segmentation")  # offloads for several datagrams in one packet
CUTTERS, CUTTER_RATE = 100, "10gbit"  # a token bucket that segments super-packets, at a rate that never limits
ETHERNET_BYTES = 14
QUANTUM_EXTRA_BYTES = 86  # bytes beyond a frame that a class may send per turn
# How far a link may run ahead of its rate. On busy cores the kernel's timers and switches may be late: with a shorter burst
# the link would lose that time for good, with a longer one it would be too fast after an idle time.
BURST_S = 0.002
LEAST_BURST_FRAMES = 2.1
BACKGROUND_QUEUE_PACKETS = 50
SIGNALLING_TOS, SIGNALLING_MASK = 0b1010_0000, 0b1111_1100  # DSCP CS5: control messages
SIGNALLING_SHARE = 0.1  # share of the link with priority; control messages need far less
SIGNALLING_QUEUE_PACKETS = 100


class LinkPort(Intf):  # type: ignore[misc]
    """An interface of a host or a switch.

    Its parameter `quality` has the link's settings (LinkQuality); `joins` says whether both ends handle super-packets.
    """

    def config(  # type: ignore[override,unused-ignore]
        self, quality: LinkQuality | None = None, joins: bool = False, **params: Any
    ) -> dict[str, Any]:
        """Called by Mininet once the interface is in its namespace. Raises: SaAtpError: a tool fails."""
        result: dict[str, Any] = super().config(**params)
        self.joins = joins and (quality is None or quality.takes_super_packets)
        wanted = dict.fromkeys(OFFLOADS, False)
        if self.joins:
            wanted.update(dict.fromkeys(SUPER_PACKETS, True))
        with closing(ethtool.socket_in(self.node.pid)) as via:
            ethtool.set_features(self.name, wanted, via)
        if quality is not None:
            self._frame_bytes = quality.mtu + ETHERNET_BYTES  # the largest
            self._run("ip", "link", "set", "dev", self.name, "mtu", str(quality.mtu))
            self._shape(quality)
        return result

    def _shape(self, quality: LinkQuality) -> None:
        if quality.rate_mbps is not None:
            self._run("tc", "qdisc", "add", "dev", self.name, "root", "handle", "1:", "htb", "default", "10")
            self._class("1:", "1:1", quality.rate_mbps, quality.rate_mbps)
            self._class("1:1", "1:5", quality.rate_mbps * SIGNALLING_SHARE, quality.rate_mbps, before=True)
            self._queue("1:5", SIGNALLING_QUEUE_PACKETS)
            self._filter("1:5", "match", "ip", "tos", f"0x{SIGNALLING_TOS:x}", f"0x{SIGNALLING_MASK:x}")
            self._class("1:1", "1:10", quality.rate_mbps * quality.own_share, quality.rate_mbps)
            self._queue("1:10", quality.queue_packets)
            if quality.own_share < 1:
                self._class("1:1", "1:20", quality.rate_mbps * (1 - quality.own_share), quality.rate_mbps)
                self._queue("1:20", BACKGROUND_QUEUE_PACKETS)
                self._filter("1:20", "match", "ip", "dport", str(BACKGROUND_PORTS), f"0x{BACKGROUND_MASK:x}")

    def _filter(self, number: str, *match: str) -> None:
        self._run(
            "tc", "filter", "add", "dev", self.name, "parent", "1:", "protocol", "ip", "u32", *match, "flowid", number
        )

    def _class(self, parent: str, number: str, rate_mbps: float, most_mbps: float, *, before: bool = False) -> None:
        quantum = str(self._frame_bytes + QUANTUM_EXTRA_BYTES)
        burst = str(max(int(LEAST_BURST_FRAMES * self._frame_bytes), int(most_mbps * 1e6 / 8 * BURST_S)))
        self._run(
            "tc", "class", "add", "dev", self.name, "parent", parent, "classid", number, "htb",
            "rate", f"{rate_mbps * 1e6:.0f}bit", "ceil", f"{most_mbps * 1e6:.0f}bit",
            "burst", burst, "cburst", burst, "quantum", quantum, "prio", "0" if before else "1",
        )  # fmt: skip

    def _queue(self, parent: str, packets: int) -> None:
        if self.joins:  # a super-packet counts as its segments
            self._add(parent, "bfifo", "limit", str(packets * self._frame_bytes))
            return
        # Senders may make super-packets regardless of the interface's features. This segments those beyond its burst.
        number = f"{int(parent.partition(':')[2]) + CUTTERS}:"
        burst, limit = str(self._frame_bytes + QUANTUM_EXTRA_BYTES), str(packets * self._frame_bytes)
        self._add(parent, "handle", number, "tbf", "rate", CUTTER_RATE, "burst", burst, "limit", limit)
        self._add(f"{number}1", "pfifo", "limit", str(packets))

    def _add(self, parent: str, *what: str) -> None:
        self._run("tc", "qdisc", "add", "dev", self.name, "parent", parent, *what)

    def _run(self, *command: str) -> None:
        self.node.run(*command)

"""Interfaces of emulated links: a rate by htb, a queue in front of it, and no offload that spoils what the switch sees.

With offloads, a veth hands over packets whose checksums are still to be computed, and super-packets larger than a link
carries: a switch that takes frames from the interface would forward both as they are.
"""

from typing import Any

from sa_atp.errors import SaAtpError
from sa_atp.testbed.mininet.api import Intf
from sa_atp.testbed.mininet.layout import LinkQuality

OFFLOADS = ("rx", "tx", "sg", "tso", "gso", "gro")
BURST_S = 0.02
LEAST_BURST_BYTES = 3200


class Port(Intf):  # type: ignore[misc]
    """An interface of a host or a switch. Its parameter `quality` says what the link is like; see LinkQuality."""

    def config(self, quality: LinkQuality | None = None, **params: Any) -> dict[str, Any]:  # type: ignore[override,unused-ignore]
        """Mininet calls this once the interface is in its namespace. Raises: SaAtpError: a tool refuses."""
        result: dict[str, Any] = super().config(**params)
        self._run("ethtool", "-K", self.name, *(word for name in OFFLOADS for word in (name, "off")))
        if quality is not None:
            self._shape(quality)
        return result

    def _shape(self, quality: LinkQuality) -> None:
        if quality.rate_mbps is not None:
            rate = f"{quality.rate_mbps * 1e6:.0f}bit"
            burst = str(max(LEAST_BURST_BYTES, int(quality.rate_mbps * 1e6 / 8 * BURST_S)))
            self._run("tc", "qdisc", "add", "dev", self.name, "root", "handle", "1:", "htb", "default", "1")
            self._run(
                "tc", "class", "add", "dev", self.name, "parent", "1:", "classid", "1:1", "htb",
                "rate", rate, "ceil", rate, "burst", burst, "cburst", burst, "quantum", "1600",
            )  # fmt: skip
            self._run(
                "tc", "qdisc", "add", "dev", self.name, "parent", "1:1", "handle", "10:",
                "pfifo", "limit", str(quality.queue_packets),
            )  # fmt: skip

    def _run(self, *command: str) -> None:
        out, err, status = self.node.pexec(list(command))
        if status != 0:
            raise SaAtpError(f"{' '.join(command)} (in {self.node.name}): {(err or out).strip()}")

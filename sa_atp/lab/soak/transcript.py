"""The last packets of a world in words: the link of each, and whether it was sent, lost or damaged."""

from collections import deque

from sa_atp.lab.simulator.network import Clock, Watch
from sa_atp.lab.simulator.world import World

LINES = 40


class Transcript:
    """Records the last packets on all links of a network. Attach it before the network runs."""

    def __init__(self, lines: int = LINES) -> None:
        """Args: lines: how many packets it keeps."""
        self._packets: deque[tuple[int, str, str, bytes]] = deque(maxlen=lines)

    def attach(self, world: World) -> None:
        for link in world.all_links:
            link.watch = self._noting(world.clock, "")
        for number, leaf in enumerate(world.leaves):
            up, down = world.trunk_of(leaf)
            up.watch, down.watch = (self._noting(world.clock, f"{way} leaf {number}") for way in ("up from", "down to"))
        for ip, links in world.links_of.items():
            for link, way in zip(links, ("from", "to"), strict=True):
                link.watch = self._noting(world.clock, f"{way} {ip}")

    def _noting(self, clock: Clock, where: str) -> Watch:
        return lambda fate, frame: self._packets.append((clock.now_us, where, fate, frame))

    def lines(self) -> list[str]:
        """A line for each packet: time in milliseconds, link, fate, content."""
        return [
            f"{now_us / 1000:12.3f} ms  {where:<20} {fate:<10} {_text(frame)}"
            for now_us, where, fate, frame in self._packets
        ]


def _text(frame: bytes) -> str:
    from sa_atp.net.captures.dissect import dissect  # imports scapy, which only a failure needs

    found = dissect(frame)
    return found.text if found else "not SA-ATP"

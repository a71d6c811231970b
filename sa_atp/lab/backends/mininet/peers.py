"""The switch of a Mininet network, for protocols with a program of their own."""

from collections.abc import Sequence

from sa_atp.lab.backends.mininet.network import MininetNetwork
from sa_atp.lab.backends.peer_switch import PeerSwitch
from sa_atp.lab.peers.peer import Seat
from sa_atp.protocol.packets.frames import mac_for
from sa_atp.protocol.packets.spec import UDP_PORT


class MininetPeer(PeerSwitch):
    """The one switch of a bare network, with the workers of its first job. They send to the address of its server."""

    def __init__(self, network: MininetNetwork) -> None:
        layout = network.layout
        self._layout = layout
        self.process = network.switches[0]
        self.grpc = network.node(layout.root.name).grpc
        self.address = (layout.server.ip, UDP_PORT)
        self.routes = tuple(layout.ports(layout.root.name).items())

    def seats(self, workers: int) -> Sequence[Seat]:
        """See PeerSwitch."""
        ports = dict(self.routes)
        return [
            Seat(ip=place.ip, mac=mac_for(place.ip), udp_port=UDP_PORT, switch_port=ports[place.ip])
            for place in self._layout.workers()
        ]

"""All other protocols, by name."""

from sa_atp.lab.peers import switchml
from sa_atp.lab.peers.peer import Peer

PEERS: dict[str, Peer] = {peer.name: peer for peer in (switchml.PEER,)}

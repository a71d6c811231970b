"""How a rank's packets get to the switch: by the leaf on its host, by memory that it shares with the switch, or by UDP."""

from sa_atp.net.host_leaf import for_rank, meeting
from sa_atp.net.host_leaf.meeting import Leaf
from sa_atp.net.shared_memory.channel import Channel
from sa_atp.net.shared_memory.open_channel import open_channel
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.job.membership import Membership


class Way:
    """Of one connection. Without a channel, packets go to the switch above by UDP, which takes them from each rank as well:
    so sums go on, more slowly, while a leaf is not there.
    """

    def __init__(self, membership: Membership, socket: UdpSocket, leaf: Leaf | None) -> None:
        """Args: leaf: of this host; closed here if the job does not use it."""
        self._membership, self._socket = membership, socket
        self._leaf = leaf
        if leaf is not None and not membership.by_leaf:
            self.close()

    def open_channel(self) -> Channel | None:
        """Asks the leaf, or else the switch, for a channel; None: it gives none, or is not there."""
        member, leaf = self._membership, self._leaf
        if leaf is None:
            return open_channel(member.data_address, self._socket.address)
        found = self._ask(leaf)
        if found is None and leaf.is_over():
            again = meeting.find(member.server_address)
            if again is None:
                for_rank.start_again(member.server_address, leaf.ports)
            elif again.ports.stated == leaf.ports.stated:  # by which switches know the leaf
                self.close()
                self._leaf = again
                return self._ask(again)
            else:
                again.close()
        return found

    def _ask(self, leaf: Leaf) -> Channel | None:
        above, line = self._membership.data_address, self._socket.fileno()
        return open_channel(leaf.ports.ranks, self._socket.address, above=above, line=line)

    def close(self) -> None:
        """Says that this rank does not need the leaf any more."""
        if self._leaf is not None:
            self._leaf.close()
            self._leaf = None

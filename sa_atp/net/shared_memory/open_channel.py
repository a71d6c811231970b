"""How a process gets a channel from the switch on its machine."""

import os

from sa_atp.net.loop.compiled import ring_kernels
from sa_atp.net.shared_memory import handshake
from sa_atp.net.shared_memory.channel import Channel
from sa_atp.net.sockets.addresses import source_of
from sa_atp.protocol.packets.datagrams import Address

VARIABLE = "SA_ATP_SHM"


def is_wanted() -> bool:
    """Whether the environment lets this process share memory with switches."""
    return os.environ.get(VARIABLE, "1") != "0"


def open_channel(
    switch: Address, own: Address, *, above: Address | None = None, line: int | None = None
) -> Channel | None:
    """Asks the switch at an address for a channel, unless the environment says SA_ATP_SHM=0.

    Args:
    own: address of this process's UDP socket.
    above: of a leaf on this host, the switch above, which the channel stands for; line: descriptor of this process's UDP
        socket, from which the leaf sends what goes up.
    Returns: None if there is no such switch on this machine, it is another user's, or it makes no channels.
    """
    if not is_wanted():
        return None
    source = source_of(own, above or switch)
    found = None if source is None else handshake.ask(switch, handshake.Hello(source, above), line)
    if found is None:
        return None
    peer, (memory, results, bell, doorbell) = found
    try:
        return Channel(above or switch, peer, memory, results, bell, doorbell, ring_kernels())
    except OSError:  # the machine has no memory for it
        peer.close()
        for each in (bell, doorbell):
            os.close(each)
        return None

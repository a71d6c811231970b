"""The state of a rank's connection."""

import os

from sa_atp.net.helping import Helping
from sa_atp.net.watching import door
from sa_atp.net.watching.states import ConnectionState
from sa_atp.protocol.rank.worker import Worker


def of_connection(worker: Worker, helping: Helping, connected_us: int, *, shares_memory: bool) -> ConnectionState:
    """Makes the record of a connection; called between turns of its loop.

    Args: connected_us: for how long it has been connected.
    """
    member, waits = worker.membership, worker.waits
    return ConnectionState(
        server="{}:{}".format(*member.server_address),
        job=member.job,
        epoch=member.epoch,
        rank=member.rank,
        world_size=member.world_size,
        process=os.getpid(),
        parent=door.parent(),
        connected_us=connected_us,
        steps=worker.collectives.begun if member.seats else waits.counted,
        sums=worker.collectives.begun,
        is_waiting=worker.collectives.is_waiting,
        helps=helping.helps_rank,
        helped=helping.helped,
        waited_us=waits.waited_us,
        sent_us=waits.sent_us,
        computed_us=connected_us if member.seats else waits.computed_us,
        window=round(worker.window.network, 1),
        slot_window=round(worker.window.slots, 1),
        round_trip_us=worker.round_trip.smoothed_us,
        shares_memory=shares_memory,
        counters=worker.stats.as_dict(),
    )

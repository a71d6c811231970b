"""A rank's connection without a network: its membership, and what a switch says to its datagrams."""

from collections.abc import Sequence
from typing import Any

from sa_atp.basics.arrays import ByteRows
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import first_byte, headers
from sa_atp.protocol.packets.spec import Kind

SWITCH, SERVER = ("127.0.0.1", 1000), ("127.0.0.1", 2000)


def member_of(**terms: Any) -> Membership:
    """Rank 0 of two, on a switch with 64 lanes. Args: terms: those that differ."""
    usual: dict[str, Any] = {
        "job": 1, "epoch": 1, "rank": 0, "world_size": 2, "micro_batches": 1, "lanes": 64, "slot_base": 0,
        "slot_count": 512, "first_seq": 0, "data_address": SWITCH, "server_address": SERVER,
        "alive_every_us": 10_000_000,
    }  # fmt: skip
    return Membership(**usual | terms)


def answers_to(probes: ByteRows, held: int | Sequence[int]) -> Burst:
    """Args: held: the contributions that the switch has of the fragments."""
    return _burst(probes, Kind.PROBE_REPLY, held)


def results_of(contributions: ByteRows, bits: int) -> Burst:
    """As if nobody else had contributed anything but zeros."""
    return _burst(contributions, Kind.RESULT, bits)


def _burst(packets: ByteRows, kind: Kind, bits: int | Sequence[int]) -> Burst:
    made = packets.copy()
    head = headers(made)
    head["first"], head["bits"] = first_byte(kind), bits
    return Burst(SWITCH, made)

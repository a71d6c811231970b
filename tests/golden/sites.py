"""Hosts and jobs of the scenarios.

workers 0, 1, 2    10.0.0.1 to .3    UDP 5000 to 5002    ports 1 to 3
parameter server   10.0.0.100        UDP 21313           port 9
"""

import dataclasses

from sa_atp.switches.control.jobspec import JobSpec, Member

LONG_TICKS = 60_000  # a minute: nothing expires in a test
SHORT_TICKS = 20  # less than one `wait`
MAX, MIN = 2**31 - 1, -(2**31)
UNUSED_PORT = 40000


def worker(rank: int, switch_port: int | None = None) -> Member:
    return Member(
        rank=rank,
        ip=f"10.0.0.{rank + 1}",
        udp_port=5000 + rank,
        mac=f"02:00:00:00:00:{rank + 1:02x}",
        switch_port=rank + 1 if switch_port is None else switch_port,
    )


W0, W1, W2 = worker(0), worker(1), worker(2)
SERVER = Member(ip="10.0.0.100", udp_port=21313, mac="02:00:00:00:00:64", switch_port=9)
OTHER_SERVER = Member(ip="10.0.0.101", udp_port=21313, mac="02:00:00:00:00:65", switch_port=10)

TWO = JobSpec(
    job=3, epoch=2, fan_in=0b11, slot_base=256, slot_count=256, group=30, ttl_ticks=LONG_TICKS, level="root",
    members=(W0, W1), parameter_server=SERVER, uplink=SERVER,
)  # fmt: skip
THREE = dataclasses.replace(TWO, fan_in=0b111, members=(W0, W1, W2))
# of 256 slots 32 in turn are of part 0, part 1, part 2, and of everybody's
SCATTERED = dataclasses.replace(THREE, scattered_to=3)
# a leaf with workers 0 and 1; the spine, and the parameter server behind it, are at port 40
LEAF_SERVER = dataclasses.replace(SERVER, switch_port=40)
LEAF = dataclasses.replace(TWO, level="leaf", parameter_server=LEAF_SERVER, uplink=LEAF_SERVER)
LEAF_OF_THREE = dataclasses.replace(LEAF, fan_in=0b111, members=(W0, W1, W2))
# the spine of two leaves with two workers each: workers 0 and 1 are behind port 21, workers 2 and 3 behind port 22
SPINE = dataclasses.replace(
    TWO, fan_in=0b1111, members=(worker(0, 21), worker(1, 21), worker(2, 22), worker(3, 22)), leaf_ports=(21, 22)
)
# one leaf with two workers, one with a single worker, and a worker at the spine itself
UNEVEN = dataclasses.replace(SPINE, members=(worker(0, 21), worker(1, 21), worker(2, 22), worker(3, 4)))
# the same with results scattered; places are of 32 slots: for four ranks, and four for everybody
SCATTERED_LEAF = dataclasses.replace(LEAF, scattered_to=4)
SCATTERED_UNEVEN = dataclasses.replace(UNEVEN, scattered_to=4)

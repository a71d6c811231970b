"""Max-min fair rates of flows that share links.

No flow can get more unless one that has no more gets less (Bertsekas and Gallager, Data Networks, section 6.5.2).
"""

import numpy as np

from sa_atp.lab.flow.arrays import Floats, Ints

FULL_SHARE = 1e-9  # a link with less than this share of its rate free is full


def fair_rates(flow: Ints, link: Ints, weight: Floats, capacity: Floats, cap: Floats) -> Floats:
    """Max-min fair rates by progressive filling: all rates rise together, and those of flows on full links stay.

    Args:
        flow, link, weight: int64[n], int64[n], float64[n]: entry i says that a flow uses a link so many times.
        capacity: float64[links].
        cap: float64[flows]: the largest rate of each flow.

    Returns: float64[flows]; 0 for flows that use no link.
    """
    rate = np.zeros(len(cap))
    growing = np.zeros(len(cap), bool)
    growing[flow] = True
    room = capacity.astype(np.float64)
    while len(flow):
        load = np.bincount(link, weight, minlength=len(capacity))
        used = load > 0
        step = float((room[used] / load[used]).min())
        to_cap = cap[growing] - rate[growing]
        step = max(0.0, min(step, float(to_cap.min())))
        rate[growing] += step
        room -= load * step
        full = used & (room <= FULL_SHARE * capacity)
        stopped = np.zeros(len(cap), bool)
        stopped[flow[full[link]]] = True
        stopped |= growing & (rate >= cap * (1 - FULL_SHARE))
        growing &= ~stopped
        stays = growing[flow]
        flow, link, weight = flow[stays], link[stays], weight[stays]
    return rate

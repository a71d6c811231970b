"""A rank's state as scalars for TensorBoard, or for any writer with its `add_scalar`."""

from typing import Any, Protocol

from sa_atp.net.watching import summary
from sa_atp.net.watching.states import ConnectionState
from sa_atp.protocol.packets.lateness_messages import JobLateness

Seen = tuple[ConnectionState, JobLateness]


class Writer(Protocol):
    """The part of torch.utils.tensorboard.SummaryWriter that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any: ...


def scalars(now: Seen, before: Seen | None) -> dict[str, float]:
    """The scalars by tag. Args: now, before: a rank's connection and the lateness of all ranks, at two times of an epoch;
    None: since the rank joined.
    """
    state, lateness = now
    earlier, late_before = (None, JobLateness()) if before is None else before
    pace = summary.pace(state, earlier)
    counters = {name: n - (earlier.counters[name] if earlier is not None else 0) for name, n in state.counters.items()}
    seconds = (state.connected_us - (earlier.connected_us if earlier is not None else 0)) / 1e6
    already_us = {each.rank: each.late_us for each in late_before.ranks}
    late = {
        f"sa_atp_late/rank {each.rank}": (each.late_us - already_us.get(each.rank, 0)) / 1e6 / max(1e-6, seconds)
        for each in lateness.ranks
    }
    return {
        "sa_atp/steps a second": pace.steps_a_second,
        "sa_atp/computing": pace.computing,
        "sa_atp/sending": pace.sending,
        "sa_atp/waiting": pace.waiting,
        "sa_atp/helped micro-batches": state.helped - (earlier.helped if earlier is not None else 0),
        "sa_atp/window": min(state.window, state.slot_window),
        "sa_atp/round trip, ms": state.round_trip_us / 1e3,
        "sa_atp/fragments sent again": counters["retransmitted"],
        "sa_atp/fragments lost": counters["lost_by_order"] + counters["lost_by_probe"],
        **late,
    }

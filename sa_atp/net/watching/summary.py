"""Conclusions from reports: rates between two looks, and for whom a job waits at the moment."""

from dataclasses import dataclass

from sa_atp.net.watching.looking import Cluster, View
from sa_atp.net.watching.states import ConnectionState, JobState, RankState, SwitchState
from sa_atp.protocol.job.errors import describe_ranks

SILENT_MS = 1000  # ranks give five signs of life a second
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Pace:
    """A rank between two looks, or since it joined."""

    steps_a_second: float
    waiting: float
    sending: float
    """Shares of the time: from contributions to sums, of which contributions left; the rest is computing."""

    @property
    def computing(self) -> float:
        """The share of all other time."""
        return 1 - self.waiting


def pace(now: ConnectionState, before: ConnectionState | None) -> Pace:
    """Args: before: the same connection in an earlier look; None: it was not there."""
    steps, waited, sent, time = now.steps, now.waited_us, now.sent_us, now.connected_us
    if before is not None and before.connected_us < now.connected_us:
        steps -= before.steps
        waited, sent = waited - before.waited_us, sent - before.sent_us
        time -= before.connected_us
    time = max(1, time)
    waiting = min(1.0, waited / time)
    return Pace(1e6 * steps / time, waiting, min(waiting, sent / time))


def connection_in(view: View | None, wanted: ConnectionState) -> ConnectionState | None:
    """Finds the connection in another look; None: it was not there."""
    found = (each for cluster in (view.clusters if view is not None else ()) for each in cluster.connections)
    key = _key(wanted)
    return next((each for each in found if _key(each) == key), None)


def _key(of: ConnectionState) -> tuple[str, int, int, int, int]:
    return of.server, of.job, of.epoch, of.rank, of.process


def steps_a_second(cluster: Cluster, job: JobState, before: View | None) -> float | None:
    """The steps of a job a second: all ranks do the same, and the slowest count. None: no rank of it is known here."""
    found = [cluster.connection(job, rank) for rank in range(job.world_size)]
    return min((pace(each, connection_in(before, each)).steps_a_second for each in found if each), default=None)


def packets_a_second(now: SwitchState, before: View | None) -> float:
    """Packets that arrived at a switch a second."""
    earlier = next((each for each in (before.all_switches() if before else ()) if each.process == now.process), None)
    if earlier is None or earlier.running_us >= now.running_us:
        return 1e6 * now.packets_in / max(1, now.running_us)
    return 1e6 * (now.packets_in - earlier.packets_in) / (now.running_us - earlier.running_us)


def activity(job: JobState, rank: RankState, connection: ConnectionState | None) -> str:
    """Says in a word or two what a rank does. Args: connection: what it tells itself, which is newer."""
    if rank.has_left:
        return "has left"
    if job.state != RUNNING:
        return "has joined"
    if connection is None and rank.heard_ms > SILENT_MS:
        return "silent"
    if connection is not None and connection.helps is not None:
        return f"helps rank {connection.helps}"
    return "waits" if _is_waiting(rank, connection) else "computes"


def _is_waiting(rank: RankState, connection: ConnectionState | None) -> bool:
    return rank.is_waiting if connection is None else connection.is_waiting


def waiting_for(cluster: Cluster, job: JobState) -> str:
    """Says in a sentence for whom a job waits at the moment, and why."""
    if job.state != RUNNING or job.is_stuck:
        return job.verdict
    there = [(rank, cluster.connection(job, rank.rank)) for rank in job.ranks if not rank.has_left]
    computing = [rank.rank for rank, connection in there if not _is_waiting(rank, connection)]
    owing = [rank.rank for rank, connection in there if _is_waiting(rank, connection) and rank.owes]
    if not computing and not owing:
        return "all ranks have contributed, and wait for the sum"
    if len(computing) == len(there):
        return "all ranks compute"
    late = sorted(computing or owing)
    verb = "computes" if len(late) == 1 else "compute"
    return f"waits for {describe_ranks(late)}, which {verb}"

"""Reports of processes as metrics for Prometheus, in its text format. (docs/watching.md)

The client `prometheus-client` makes the text and serves it (extra `metrics`); here is which metrics there are.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from sa_atp.basics import needs
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.net.watching.looking import Cluster, Look, View
from sa_atp.net.watching.states import ConnectionState, JobState, RankState, SwitchState
from sa_atp.protocol.packets.datagrams import Address

Labels = tuple[str, ...]
Sample = tuple[Labels, float]
JOB: Labels = ("server", "job_name")  # not `job`, which is Prometheus' own label
RANK: Labels = (*JOB, "rank")
OVER = ("failed", "ended")


class Metric(NamedTuple):
    name: str
    """Without `_total`, which a counter's name ends with."""
    kind: Literal["counter", "gauge"]
    help: str
    labels: Labels
    samples: Callable[[View], Iterable[Sample]]

    @property
    def exposed(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


# --- what samples are of --------------------------------------------------------------------------------------------------


def _of_jobs(values: Callable[[JobState], Iterable[tuple[Labels, float]]]) -> Callable[[View], Iterator[Sample]]:
    """Samples of each job. Args: values: of a job, with further labels."""

    def samples(view: View) -> Iterator[Sample]:
        for cluster, job in _jobs(view):
            for labels, value in values(job):
                yield (cluster.address, job.name, *labels), value

    return samples


def _of_ranks(
    values: Callable[[RankState], Iterable[tuple[Labels, float]]], *, only_there: bool = False
) -> Callable[[View], Iterator[Sample]]:
    """Samples of each rank, as its parameter server sees it. Args: only_there: none of ranks whose job is over for them."""

    def samples(view: View) -> Iterator[Sample]:
        for cluster, job in _jobs(view):
            for rank in job.ranks:
                if only_there and (rank.has_left or job.state in OVER):
                    continue
                for labels, value in values(rank):
                    yield (cluster.address, job.name, str(rank.rank), *labels), value

    return samples


def _of_connections(
    values: Callable[[ConnectionState], Iterable[tuple[Labels, float]]],
) -> Callable[[View], Iterator[Sample]]:
    """Samples of each rank, as it tells itself."""

    def samples(view: View) -> Iterator[Sample]:
        for cluster in view.clusters:
            names = {job.number: job.name for job in cluster.server.jobs} if cluster.server is not None else {}
            for each in cluster.connections:
                for labels, value in values(each):
                    yield (cluster.address, names.get(each.job, str(each.job)), str(each.rank), *labels), value

    return samples


def _of_switches(
    values: Callable[[SwitchState], Iterable[tuple[Labels, float]]],
) -> Callable[[View], Iterator[Sample]]:
    def samples(view: View) -> Iterator[Sample]:
        for switch in view.all_switches():
            for labels, value in values(switch):
                yield (switch.name, *labels), value

    return samples


def _jobs(view: View) -> Iterator[tuple[Cluster, JobState]]:
    for cluster in view.clusters:
        for job in cluster.server.jobs if cluster.server is not None else ():
            yield cluster, job


def _states(view: View) -> Iterator[Sample]:
    for cluster in view.clusters:
        states = [job.state for job in cluster.server.jobs] if cluster.server is not None else []
        for state in ("gathering", "admitting", "running", *OVER):
            yield (cluster.address, state), states.count(state)


def _refused(view: View) -> Iterator[Sample]:
    for cluster in view.clusters:
        if cluster.server is not None:
            yield (cluster.address, "malformed"), cluster.server.malformed
            yield (cluster.address, "foreign"), cluster.server.foreign


def _finished(view: View) -> Iterator[Sample]:
    for cluster, job in _jobs(view):
        if not job.counters:
            continue
        here = job.counters["finished_here"]
        # a parameter server that shares memory with the switch is spared copies of results, and its ranks have counted them
        ranks = (cluster.connection(job, rank) for rank in range(job.world_size))
        taken = [each.counters["results"] for each in ranks if each is not None]
        yield (cluster.address, job.name, "switch"), max(job.counters["results_kept"], max(taken, default=0) - here)
        yield (cluster.address, job.name, "parameter server"), here


def _one(value: Callable[[Any], float]) -> Callable[[Any], Iterable[tuple[Labels, float]]]:
    """A single value, without further labels."""
    return lambda of: [((), value(of))]


def _named(values: Callable[[Any], dict[str, float]]) -> Callable[[Any], Iterable[tuple[Labels, float]]]:
    """Values by the one further label."""
    return lambda of: [((name,), value) for name, value in values(of).items()]


# --- the metrics ------------------------------------------------------------------------------------------------------

METRICS = (
    Metric("sa_atp_jobs", "gauge", "Jobs of a parameter server.", ("server", "state"), _states),
    Metric("sa_atp_server_refused_packets", "counter", "Packets of no job that a parameter server refused.",
           ("server", "reason"), _refused),
    Metric("sa_atp_job_info", "gauge", "1: the number and epoch that a job has in packets.", (*JOB, "number", "epoch"),
           _of_jobs(lambda job: [((str(job.number), str(job.epoch)), 1)])),
    Metric("sa_atp_job_world_size", "gauge", "Ranks that a job has when all have joined.", JOB,
           _of_jobs(_one(lambda job: job.world_size))),
    Metric("sa_atp_job_ranks", "gauge", "Ranks that have joined a job, and not left it.", JOB,
           _of_jobs(_one(lambda job: sum(not rank.has_left for rank in job.ranks)))),
    Metric("sa_atp_job_stuck", "gauge", "1: a job does not go on; sa-atp watch says what it waits for.", JOB,
           _of_jobs(_one(lambda job: job.is_stuck))),
    Metric("sa_atp_job_compared_sums", "counter", "Sums for which the waits of all ranks were compared.", JOB,
           _of_jobs(_one(lambda job: job.sums))),
    Metric("sa_atp_job_fragments", "counter", "Fragments whose sum was finished, by a switch or by the parameter server.",
           (*JOB, "by"), _finished),
    Metric("sa_atp_job_events", "counter", "Counters of a parameter server for a job (protocol section 8).",
           (*JOB, "event"), _of_jobs(_named(lambda job: job.counters))),
    Metric("sa_atp_rank_heard_seconds", "gauge", "Time since the parameter server heard of a rank.", RANK,
           _of_ranks(_one(lambda rank: rank.heard_ms / 1e3), only_there=True)),
    Metric("sa_atp_rank_late_sums", "counter", "Compared sums in which a rank was late.", RANK,
           _of_ranks(_one(lambda rank: rank.late))),
    Metric("sa_atp_rank_last_sums", "counter", "Compared sums in which a rank was the latest of those that were late.",
           RANK, _of_ranks(_one(lambda rank: rank.last))),
    Metric("sa_atp_rank_late_seconds", "counter", "Time by which a rank was late in compared sums, by its cause.",
           (*RANK, "cause"), _of_ranks(_named(lambda rank: {"computing": rank.late_computing_us / 1e6,
                                                            "sending": rank.late_sending_us / 1e6}))),
    Metric("sa_atp_rank_steps", "counter", "Measured sums of a rank; with the DDP hook its steps.", RANK,
           _of_connections(_one(lambda each: each.steps))),
    Metric("sa_atp_rank_sums", "counter", "Sums that a rank has begun.", RANK,
           _of_connections(_one(lambda each: each.sums))),
    Metric("sa_atp_rank_seconds", "counter", "Time of a rank: its contributions leave (sending), it waits for their sum, "
           "and everything else (computing).", (*RANK, "activity"),
           _of_connections(_named(lambda each: {
               "computing": max(0, each.connected_us - each.waited_us) / 1e6,
               "sending": min(each.sent_us, each.waited_us) / 1e6,
               "waiting": max(0, each.waited_us - each.sent_us) / 1e6}))),
    Metric("sa_atp_rank_helped_micro_batches", "counter", "Micro-batches of other ranks that a rank was given.", RANK,
           _of_connections(_one(lambda each: each.helped))),
    Metric("sa_atp_rank_window_fragments", "gauge", "Windows of a rank: fragments that may be on their way, and slots.",
           (*RANK, "window"),
           _of_connections(_named(lambda each: {"network": each.window, "slots": each.slot_window}))),
    Metric("sa_atp_rank_round_trip_seconds", "gauge", "Smoothed round trip between a rank and the switch.", RANK,
           _of_connections(_one(lambda each: each.round_trip_us / 1e6))),
    Metric("sa_atp_rank_events", "counter", "Counters of a rank's connection: what was sent, sent again, lost, refused.",
           (*RANK, "event"), _of_connections(_named(lambda each: each.counters))),
    Metric("sa_atp_switch_packets", "counter", "Packets that arrived at a switch, left it, or were for no port.",
           ("switch", "direction"),
           _of_switches(_named(lambda each: {"in": each.packets_in, "out": each.packets_out,
                                             "unattached": each.unattached}))),
    Metric("sa_atp_switch_dropped_packets", "counter", "Packets that a switch dropped, by port and cause.",
           ("switch", "port", "cause"),
           _of_switches(lambda each: [((drop.where, drop.cause), drop.packets) for drop in each.drops])),
    Metric("sa_atp_switch_slots", "gauge", "Slots of a switch's program.", ("switch",),
           _of_switches(_one(lambda each: each.slots))),
    Metric("sa_atp_switch_slots_in_use", "gauge", "Slots whose sum is not complete.", ("switch",),
           _of_switches(_one(lambda each: each.slots_open))),
    Metric("sa_atp_switch_events", "counter", "Packets of a job (by its number), by what the program did with them: "
           "collision, evicted, ... (protocol section 8).", ("switch", "number", "event"),
           _of_switches(lambda each: [((number, event), count) for number, events in each.events.items()
                                      for event, count in events.items()])),
)  # fmt: skip


# --- serving ----------------------------------------------------------------------------------------------------------


class Collector:
    """A collector for a registry of `prometheus_client`, which looks anew for each scrape."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Any]:
        """Yields every metric, with samples of what is there. A look that fails finds nothing."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        try:
            view = self._look()
        except (SaAtpError, TimeoutError):
            view = View(time=0.0)
        for metric in METRICS:
            family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                metric.name, metric.help, labels=metric.labels
            )
            for labels, value in metric.samples(view):
                family.add_metric(labels, value)
            yield family


@contextlib.contextmanager
def serving(address: Address, look: Look) -> Iterator[str]:
    """Serves metrics by HTTP for a block. Args: address: port 0 is any free one. Yields: the URL.

    Raises: MissingPartError: the client is not installed; UserError: the address cannot be used.
    """
    needs.require_modules("--metrics needs", "prometheus_client")
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(Collector(look))
    try:
        server, thread = start_http_server(address[1], address[0], registry)
    except OSError as error:
        raise UserError("--metrics {}:{}: {}".format(*address, error.strerror)) from None
    try:
        yield "http://{}:{}/metrics".format(*server.server_address[:2])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

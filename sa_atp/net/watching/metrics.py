"""Reports of processes as metrics for Prometheus, in its text format. (docs/watching.md)

The client `prometheus-client` makes the text and serves it (extra `metrics`); here is which metrics there are.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from sa_atp.basics import needs
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.net.watching.looking import Cluster, Look, View
from sa_atp.net.watching.states import ConnectionState
from sa_atp.protocol.packets.datagrams import Address

Labels = tuple[str, ...]
Records = Iterable[tuple[Labels, Any]]
JOB: Labels = ("server", "job_name")  # not `job`, which is Prometheus' own label
RANK: Labels = (*JOB, "rank")
OVER = ("failed", "ended")


class Metric(NamedTuple):
    name: str
    """Without `_total`, which a counter's name ends with."""
    kind: Literal["counter", "gauge"]
    help: str
    labels: Labels
    records: Callable[[View], Records]
    """What it is about, with the first labels of each."""
    values: Callable[[Any], float | Mapping[Any, float]]
    """Of a record: a value, or values by the further labels, of which a single one need not be a tuple."""

    @property
    def exposed(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def samples(self, view: View) -> Iterator[tuple[Labels, float]]:
        """Yields the labels and the value of each sample."""
        for labels, record in self.records(view):
            found = self.values(record)
            for further, value in found.items() if isinstance(found, Mapping) else [((), found)]:
                yield (*labels, *((further,) if isinstance(further, str) else further)), value


# --- what samples are of --------------------------------------------------------------------------------------------------


def _clusters(view: View) -> Records:
    return [((cluster.address,), cluster) for cluster in view.clusters]


def _servers(view: View) -> Records:
    return [(labels, cluster.server) for labels, cluster in _clusters(view) if cluster.server is not None]


def _jobs(view: View) -> Records:
    return [((*labels, job.name), job) for labels, server in _servers(view) for job in server.jobs]


def _ranks(view: View) -> Records:
    """Each rank, as its parameter server sees it."""
    return [((*labels, str(rank.rank)), rank) for labels, job in _jobs(view) for rank in job.ranks]


def _ranks_there(view: View) -> Records:
    """None of ranks whose job is over for them."""
    jobs = [(labels, job) for labels, job in _jobs(view) if job.state not in OVER]
    return [((*labels, str(rank.rank)), rank) for labels, job in jobs for rank in job.ranks if not rank.has_left]


def _connections(view: View) -> Iterator[tuple[Labels, ConnectionState]]:
    """The state that each rank tells of itself; of several processes of one rank, that of the process which joined last."""
    found: dict[Labels, ConnectionState] = {}
    for cluster in view.clusters:
        names = {job.number: job.name for job in cluster.server.jobs} if cluster.server is not None else {}
        for each in sorted(cluster.connections, key=lambda connection: -connection.connected_us):
            found[cluster.address, names.get(each.job, str(each.job)), str(each.rank)] = each
    yield from found.items()


def _switches(view: View) -> Records:
    return [((switch.name,), switch) for switch in view.all_switches()]


# --- values that take some work -------------------------------------------------------------------------------------------


def _states(cluster: Cluster) -> Mapping[str, float]:
    states = [job.state for job in cluster.server.jobs] if cluster.server is not None else []
    return {state: states.count(state) for state in ("gathering", "admitting", "running", *OVER)}


class _Finished:
    """The fragments of each job whose sum was finished, by whom."""

    def __init__(self) -> None:
        # an epoch of a job, and the most of its fragments that any look saw finished by switches: a look may miss ranks
        self._most: dict[Labels, tuple[tuple[int, int], int]] = {}

    def __call__(self, view: View) -> Iterator[tuple[Labels, Mapping[str, float]]]:
        for cluster in view.clusters:
            for job in cluster.server.jobs if cluster.server is not None else ():
                if not job.counters:
                    continue
                here = job.counters["finished_here"]
                # a parameter server that shares memory with the switch is spared copies of results: its ranks count them
                ranks = (cluster.connection(job, rank) for rank in range(job.world_size))
                results = max((each.counters["results"] for each in ranks if each is not None), default=0)
                labels, epoch = (cluster.address, job.name), (job.number, job.epoch)
                before, most = self._most.get(labels, (epoch, 0))
                by_switch = max(job.counters["results_kept"], results - here, most if before == epoch else 0)
                self._most[labels] = epoch, by_switch
                yield labels, {"switch": by_switch, "parameter server": here}


# --- the metrics ------------------------------------------------------------------------------------------------------

METRICS = (
    Metric("sa_atp_jobs", "gauge", "Jobs of a parameter server.", ("server", "state"), _clusters, _states),
    Metric("sa_atp_server_refused_packets", "counter", "Packets of no job that a parameter server refused.",
           ("server", "reason"), _servers,
           lambda server: {"malformed": server.malformed, "foreign": server.foreign}),
    Metric("sa_atp_job_info", "gauge", "1: the number and epoch that a job has in packets.", (*JOB, "number", "epoch"),
           _jobs, lambda job: {(str(job.number), str(job.epoch)): 1}),
    Metric("sa_atp_job_world_size", "gauge", "Ranks that a job has when all have joined.", JOB,
           _jobs, lambda job: job.world_size),
    Metric("sa_atp_job_ranks", "gauge", "Ranks that have joined a job, and not left it.", JOB,
           _jobs, lambda job: sum(not rank.has_left for rank in job.ranks)),
    Metric("sa_atp_job_stuck", "gauge", "1: a job does not go on; sa-atp watch says what it waits for.", JOB,
           _jobs, lambda job: job.is_stuck),
    Metric("sa_atp_job_compared_sums", "counter", "Sums for which the waits of all ranks were compared.", JOB,
           _jobs, lambda job: job.sums),
    Metric("sa_atp_job_fragments", "counter", "Fragments whose sum was finished, by a switch or by the parameter server.",
           (*JOB, "by"), _Finished(), lambda found: found),
    Metric("sa_atp_job_events", "counter", "Counters of a parameter server for a job (protocol section 8).",
           (*JOB, "event"), _jobs, lambda job: job.counters),
    Metric("sa_atp_rank_heard_seconds", "gauge", "Time since the parameter server heard of a rank.", RANK,
           _ranks_there, lambda rank: rank.heard_ms / 1e3),
    Metric("sa_atp_rank_late_sums", "counter", "Compared sums in which a rank was late.", RANK,
           _ranks, lambda rank: rank.late),
    Metric("sa_atp_rank_last_sums", "counter", "Compared sums in which a rank was the latest of those that were late.",
           RANK, _ranks, lambda rank: rank.last),
    Metric("sa_atp_rank_late_seconds", "counter", "Time by which a rank was late in compared sums, by its cause.",
           (*RANK, "cause"), _ranks,
           lambda rank: {"computing": rank.late_computing_us / 1e6, "sending": rank.late_sending_us / 1e6}),
    Metric("sa_atp_rank_steps", "counter", "Measured sums of a rank; with the DDP hook its steps.", RANK,
           _connections, lambda each: each.steps),
    Metric("sa_atp_rank_sums", "counter", "Sums that a rank has begun.", RANK, _connections, lambda each: each.sums),
    Metric("sa_atp_rank_seconds", "counter", "Time of a rank up to its newest measured sum: its contributions leave "
           "(sending), it waits for their sum, and everything else (computing).", (*RANK, "activity"), _connections,
           lambda each: {
               "computing": each.computed_us / 1e6,
               "sending": each.sent_us / 1e6,
               "waiting": (each.waited_us - each.sent_us) / 1e6}),
    Metric("sa_atp_rank_helped_micro_batches", "counter", "Micro-batches of other ranks that a rank was given.", RANK,
           _connections, lambda each: each.helped),
    Metric("sa_atp_rank_window_fragments", "gauge", "Windows of a rank: fragments that may be on their way, and slots.",
           (*RANK, "window"), _connections, lambda each: {"network": each.window, "slots": each.slot_window}),
    Metric("sa_atp_rank_round_trip_seconds", "gauge", "Smoothed round trip between a rank and the switch.", RANK,
           _connections, lambda each: each.round_trip_us / 1e6),
    Metric("sa_atp_rank_events", "counter", "Counters of a rank's connection: what was sent, sent again, lost, refused.",
           (*RANK, "event"), _connections, lambda each: each.counters),
    Metric("sa_atp_switch_packets", "counter", "Packets that arrived at a switch, left it, or were for no port.",
           ("switch", "direction"), _switches,
           lambda each: {"in": each.packets_in, "out": each.packets_out, "unattached": each.unattached}),
    Metric("sa_atp_switch_dropped_packets", "counter", "Packets that a switch dropped, by port and cause.",
           ("switch", "port", "cause"), _switches,
           lambda each: {(drop.where, drop.cause): drop.packets for drop in each.drops}),
    Metric("sa_atp_switch_slots", "gauge", "Slots of a switch's program.", ("switch",),
           _switches, lambda each: each.slots),
    Metric("sa_atp_switch_slots_in_use", "gauge", "Slots whose sum is not complete.", ("switch",),
           _switches, lambda each: each.slots_open),
    Metric("sa_atp_switch_events", "counter", "Packets of a job (by its number), by what the program did with them: "
           "collision, evicted, ... (protocol section 8).", ("switch", "number", "event"), _switches,
           lambda each: {(number, event): count for number, events in each.events.items()
                         for event, count in events.items()}),
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

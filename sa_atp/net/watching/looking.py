"""Looks at what runs: reads the doors of this user's processes, and puts together what belongs together.

A parameter server on another machine, or another user's, has no door here. It still describes its jobs by the message of
protocol section 9.3, if it may: then ranks are known as far as it hears of them.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct, field

from sa_atp.net.job_status import ask_for_jobs
from sa_atp.net.watching import door
from sa_atp.net.watching.of_server import of_status
from sa_atp.net.watching.states import ConnectionState, JobState, RankState, ServerState, SwitchState, Told
from sa_atp.protocol.packets.datagrams import Address

LONGEST_S = 3.0  # for a process to tell all; its loops have a second each

_decoder = msgspec.json.Decoder(Told)


class Cluster(Struct, frozen=True, kw_only=True):
    """A parameter server, its switches, and the connections of its ranks, as far as they are known."""

    address: str
    """The parameter server's, HOST:PORT."""
    server: ServerState | None = None
    """None: it does not tell its state here."""
    switches: list[SwitchState] = field(default_factory=list)
    connections: list[ConnectionState] = field(default_factory=list)

    def connection(self, job: JobState, rank: int) -> ConnectionState | None:
        """Finds a rank's own report; None: there is none."""
        wanted = (job.number, job.epoch, rank)
        return next((each for each in self.connections if (each.job, each.epoch, each.rank) == wanted), None)

    def rank(self, connection: ConnectionState) -> RankState | None:
        """Finds what the parameter server tells of the rank at the other end of a connection. Returns: None: nothing."""
        jobs = self.server.jobs if self.server is not None else ()
        wanted = connection.job, connection.epoch
        ranks = [rank for job in jobs if (job.number, job.epoch) == wanted for rank in job.ranks]
        return next((each for each in ranks if each.rank == connection.rank), None)


class View(Struct, frozen=True, kw_only=True):
    """All that was seen in one look."""

    time: float
    """Seconds since 1970."""
    clusters: list[Cluster] = field(default_factory=list)
    switches: list[SwitchState] = field(default_factory=list)
    """Switches of no parameter server that is known."""

    @property
    def is_empty(self) -> bool:
        return not self.clusters and not self.switches

    def all_switches(self) -> list[SwitchState]:
        return [*(switch for cluster in self.clusters for switch in cluster.switches), *self.switches]


def look(*, server: Address | None = None, children_of: int | None = None) -> View:
    """Looks once.

    Args:
        server: only this parameter server, and what belongs to it; if it has no door here, it is asked as a stranger may.
        children_of: only processes that this one has started, and what belongs to them.

    Raises: TransportError: `server` does not answer, or does not describe its jobs.
    """
    told = read_doors()
    if server is not None:
        address = "{}:{}".format(*server)
        found = next((each for each in told if isinstance(each, ServerState) and address in each.addresses), None)
        if found is None:
            found = ServerState(address=address, jobs=[of_status(status) for status in ask_for_jobs(server)])
            told.append(found)
        view = put_together(told)
        return View(time=view.time, clusters=[each for each in view.clusters if each.address == found.address])
    if children_of is not None:
        told = list(_of_family(told, children_of))
    return put_together(told)


def read_doors() -> list[Told]:
    """Reads the reports of all of this user's processes. The doors of processes that were killed are removed."""
    place = door.folder()
    if place is None or not door.is_own(place):
        return []
    return [told for path in sorted(place.glob(f"*{door.SUFFIX}")) for told in _read(path)]


def _read(path: Path) -> Iterable[Told]:
    data = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(LONGEST_S)
        try:
            with door.name_of(path) as name:
                visitor.connect(name)
            while got := visitor.recv(1 << 16):
                data += got
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:  # it has ended meanwhile, or is stopped
            pass
    for line in data.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):  # a process of another version
            yield _decoder.decode(line)


def put_together(told: Iterable[Told]) -> View:
    """Sorts what was told by parameter servers."""
    known = list(told)
    servers = {each.address: each for each in known if isinstance(each, ServerState)}
    connections = [each for each in known if isinstance(each, ConnectionState)]
    switches = {each.grpc: each for each in known if isinstance(each, SwitchState)}
    listens_at = {address: each.address for each in servers.values() for address in each.addresses}
    of = {each.server: listens_at.get(each.server, each.server) for each in connections}
    clusters = []
    for address in sorted({*servers, *of.values()}):
        server = servers.get(address)
        own = [switches.pop(grpc) for grpc in (server.switches if server is not None else ()) if grpc in switches]
        ranks = sorted(
            (each for each in connections if of[each.server] == address), key=lambda each: (each.job, each.rank)
        )
        clusters.append(Cluster(address=address, server=server, switches=own, connections=ranks))
    return View(time=time.time(), clusters=clusters, switches=list(switches.values()))


def _of_family(told: Iterable[Told], parent: int) -> Iterable[Told]:
    known = list(told)
    own = [each for each in known if isinstance(each, ServerState) and each.parent == parent]
    servers = {address for each in own for address in each.addresses}
    for each in known:
        if each.parent == parent or (isinstance(each, ConnectionState) and each.server in servers):
            yield each


Look = Callable[[], View]

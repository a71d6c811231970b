"""Between the parameter server, which decides about jobs, and the switches, which must know of them.

The parameter server's loop must not wait for P4Runtime, so a thread takes its events, writes tables, and reports back.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sa_atp.control import jobs
from sa_atp.control.jobspec import JobSpec, Member
from sa_atp.control.writer import Writer
from sa_atp.errors import SaAtpError
from sa_atp.softswitch.frames import mac_for
from sa_atp.transport.job import Job
from sa_atp.transport.server import Admit, Retire, ServerEvent
from sa_atp.wire.datagrams import Address


def mac_text(mac: int) -> str:
    return ":".join(f"{mac >> shift & 255:02x}" for shift in range(40, -8, -8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """How hosts are attached to a switch."""

    server: Address
    """The parameter server's address as packets carry it."""
    default_port: int
    """Switch port behind which every host is that `ports` does not name."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Switch port by IP address."""
    ttl_ticks: int = 100
    """How long an incomplete sum may be idle before another fragment may take its slot, about a millisecond each."""

    def member(self, address: Address, rank: int = -1) -> Member:
        ip, udp_port = address
        port = self.ports.get(ip, self.default_port)
        return Member(ip=ip, udp_port=udp_port, mac=mac_text(mac_for(ip)), switch_port=port, rank=rank)

    def spec(self, job: Job) -> JobSpec:
        """What the tables of a single switch, the root, must say about a job."""
        server = self.member(self.server)
        return JobSpec(
            job=job.number,
            epoch=job.epoch,
            fan_in=job.fan_in,
            slot_base=job.slot_base,
            slot_count=job.slot_count,
            group=job.number,
            ttl_ticks=self.ttl_ticks,
            level="root",
            members=tuple(self.member(m.address, m.rank) for m in job.members.values()),
            parameter_server=server,
            uplink=server,
        )


class Installer:
    """Installs and removes jobs, one after the other, in a thread."""

    def __init__(
        self,
        writer: Writer,
        attachment: Attachment,
        *,
        admitted: Callable[[int], None],
        refused: Callable[[int, str], None],
    ) -> None:
        """Args: admitted, refused: called from the thread with the job's number (and the reason)."""
        self._writer = writer
        self._attachment = attachment
        self._admitted = admitted
        self._refused = refused
        self._events: queue.SimpleQueue[ServerEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sa-atp-installer", daemon=True)
        self._thread.start()

    def submit(self, event: ServerEvent) -> None:
        self._events.put(event)

    def close(self) -> None:
        self._events.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            match event:
                case Admit(job):
                    try:
                        jobs.install(self._writer, self._attachment.spec(job), share_slots=True)
                    except SaAtpError as error:
                        self._refused(job.number, str(error))
                    else:
                        self._admitted(job.number)
                case Retire(number, _):
                    try:
                        jobs.remove(self._writer, number)
                    except SaAtpError as error:
                        # the job is over either way; its entries admit nobody who is still there
                        print(f"sa-atp: job {number} could not be removed from the switch: {error}", flush=True)

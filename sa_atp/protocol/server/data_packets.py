"""Data packets at the parameter server: contributions are added, results kept, probes answered. (section 7.2)"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from sa_atp.basics.arrays import Bitmaps, ByteRows, Headers, Octets
from sa_atp.protocol.job.errors import describe_ranks
from sa_atp.protocol.log.server_events import FinishedHere
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.header import bitmaps, headers, lanes_of, number_of
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.compiled.common_case import Kernels, ResultStreams
from sa_atp.protocol.server import sums
from sa_atp.protocol.server.job import ALIKE, Job, State
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.protocol.server.serving import Serving


class Fail(Protocol):
    """Ends a job's epoch."""

    def __call__(self, job: Job, reason: str, ranks: Sequence[int], detail: str) -> None: ...


class DataPackets:
    def __init__(
        self,
        settings: ServerSettings,
        jobs: Mapping[int, Job],
        serving: Serving,
        kernels: Kernels | None,
        fail: Fail,
    ) -> None:
        """Args:
        kernels: compiled code for the common case; None: the rules in Python handle every packet.
        fail: called where ranks turn out to sum different things.
        """
        self._settings = settings
        self._jobs = jobs
        self._serving = serving
        self._kernels = kernels
        self._fail = fail
        self._streams: dict[int, ResultStreams] = {}
        self.foreign = 0
        """Packets of jobs that do not run."""

    def keep_common(self, burst: Burst) -> bool:
        """Keeps a burst of copies of results. Returns: False: it has other packets, and nothing was done."""
        job = None if self._kernels is None else self._jobs.get(int(headers(burst.data[:1])["job"][0]))
        if (
            self._kernels is None or job is None or job.state is not State.RUNNING or job.recalled
            or (burst.address != self._settings.switch_address and job.member_at(burst.address) is None)
        ):  # fmt: skip
            return False
        known = self._streams.get(job.number)
        if known is None or known.epoch != job.epoch:
            known = self._streams[job.number] = ResultStreams(
                self._kernels, job=job.number, epoch=job.epoch, fan_in=job.fan_in, lanes=job.lanes,
                contribution_bits=job.contribution_bits,
            )  # fmt: skip
        streams = known.find(burst.data)
        if streams is None:
            return False
        lanes = lanes_of(burst.data, job.contribution_bits)
        for stream in streams:
            rows = slice(stream.start, stream.end)
            if not stream.collided and job.sums.keep_stream(stream.seq, stream.exponent, stream.tag, lanes[rows]):
                job.stats.results_kept += stream.end - stream.start
            else:
                packets = burst.data[rows]
                self.take(Kind.RESULT, job.number, headers(packets), packets, burst.address)
        return True

    def take(self, kind: Kind, number: int, head: Headers, packets: ByteRows, address: Address) -> None:
        """Handles packets of one kind, job and sender, each of the length that its kind has."""
        job = self._jobs.get(number)
        if job is None or job.state is not State.RUNNING:
            self.foreign += len(head)
            return
        if address != self._settings.switch_address and job.member_at(address) is None:
            job.stats.foreign += len(head)
            return
        current = head["epoch"] == job.epoch
        if not current.all():
            job.stats.stale += int((~current).sum())
            head, packets = head[current], packets[current]
        if kind is Kind.PROBE:
            self._serving.answer_probes(job, head)
            return
        fan_in = job.sums.fan_in
        bits = bitmaps(packets, job.contribution_bits).astype(np.uint64)
        if kind is Kind.RESULT:
            sound = (bits == fan_in).all(axis=1)
        else:
            sound = bits.any(axis=1) & ~(bits & ~fan_in).any(axis=1)
        if not sound.all():
            job.stats.malformed += int((~sound).sum())
            head, bits, packets = head[sound], bits[sound], packets[sound]
        if not len(head):
            return
        if kind is Kind.RESULT:
            outcome = job.sums.keep(head, lanes_of(packets, job.contribution_bits))
            news = outcome == sums.COMPLETED
            job.stats.results_kept += int(news.sum())
            job.stats.duplicates += int(np.isin(outcome, (sums.KNOWN, sums.PASSED)).sum())
            if job.recalled:
                self._serving.serve_recalled(job, head["seq"][news])
        else:
            outcome = job.sums.add(head, bits, lanes_of(packets, job.contribution_bits))
            self._after_adding(job, head, bits, outcome)
        job.stats.beyond += int((outcome == sums.BEYOND).sum())

    def _after_adding(self, job: Job, head: Headers, bits: Bitmaps, outcome: Octets) -> None:
        stats = job.stats
        completed = outcome == sums.COMPLETED
        stats.added += int(((outcome == sums.ADDED) | completed).sum())
        stats.duplicates += int(np.isin(outcome, (sums.DUPLICATE, sums.KNOWN, sums.PASSED)).sum())
        stats.overlaps += int((outcome == sums.OVERLAP).sum())
        if (outcome == sums.MISMATCH).any():
            found = int(np.flatnonzero(outcome == sums.MISMATCH)[0])
            ranks = job.ranks_behind([job.map.lowest_rank(number_of(bits[found]))])
            self._fail(
                job, "mismatch", ranks,
                f"{describe_ranks(ranks)} sums something else than the others at fragment {int(head['seq'][found])}: "
                f"{ALIKE}",
            )  # fmt: skip
            return
        if completed.any():
            stats.finished_here += int(completed.sum())
            seqs = head["seq"][completed]
            job.log(FinishedHere(int(seqs[0]), int(seqs[-1]), len(seqs)))
            self._serving.fan_out(job, job.sums.complete(seqs))
        known = (outcome == sums.KNOWN) & (head["flags"] & Flag.ON_BEHALF == 0)
        if known.any() and not job.seats:  # with seats, bits do not name the sender; it will ask for the lost result
            # the sender would not send again if it had the result
            senders = np.array([job.map.lowest_rank(number_of(b)) for b in bits[known]])
            for rank in np.unique(senders):
                self._serving.serve(job, int(rank), head["seq"][known][senders == rank])

"""Sends results to ranks, and recalls those that the server lacks from other ranks. (protocol section 5.7)"""

import itertools

import numpy as np

from sa_atp.basics.arrays import ByteRows, Headers, Mask, Seqs
from sa_atp.protocol.job.serial import serial_distance
from sa_atp.protocol.packets.control import Fetch, Recall, encode
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.header import bitmaps, first_byte, header_bytes, headers, lanes_of, size_of, words_of
from sa_atp.protocol.packets.question_numbers import QUESTION_FLAGS
from sa_atp.protocol.packets.spec import UDP_PORT, Flag, Kind
from sa_atp.protocol.server.job import Job
from sa_atp.protocol.server.outbox import EVERYBODY, Outbox
from sa_atp.protocol.server.sums import Stored

MAX_RECALL = 32  # results recalled from other workers for one request


class Serving:
    def __init__(self, out: Outbox, switch: Address | None, *, aggregates: bool) -> None:
        """Args: out: takes the datagrams; switch, aggregates: see ServerSettings."""
        self._out = out
        self._switch = switch
        self._aggregates = aggregates

    def fan_out(self, job: Job, stored: Stored) -> None:
        """Sends sums that the server has finished to all ranks, by way of the switch, which copies them."""
        packets = result_packets(job, stored, Flag.FROM_PS | Flag.FAN_OUT)
        if self._aggregates:
            first_member = job.members[min(job.members)].address[0]
            switch = self._switch or (first_member, UDP_PORT)
            self._out.add_results((job.number, job.epoch, EVERYBODY), switch, stored.seqs, packets)
            return
        for rank, member in job.members.items():
            self._out.add_results((job.number, job.epoch, rank), member.address, stored.seqs, packets)

    def serve(self, job: Job, rank: int, seqs: Seqs) -> Mask:
        """Sends stored results to one worker, but for those already queued. Returns: bool[n]: it has or gets this one."""
        key = job.number, job.epoch, rank
        waits = self._out.waits_for(key, seqs)
        stored = job.sums.complete(seqs[~waits])
        if len(stored.seqs):
            job.stats.served += len(stored.seqs)
            packets = result_packets(job, stored, Flag.FROM_PS)
            needs = job.needs(rank, stored.seqs)
            # in order, because the last one of a batch says that the rest is lost
            edges = [0, *(np.flatnonzero(np.diff(needs)) + 1).tolist(), len(needs)]
            for start, end in itertools.pairwise(edges):
                size = packets.shape[1] if needs[start] else header_bytes(job.contribution_bits)
                rows = np.ascontiguousarray(packets[start:end, :size])
                self._out.add_results(key, job.members[rank].address, stored.seqs[start:end], rows)
        known: Mask = waits | np.isin(seqs, stored.seqs)
        return known

    def fetch(self, job: Job, rank: int, asked: Fetch) -> None:
        """Sends the stored results of a batch; recalls missing ones at its beginning from other ranks."""
        seqs = (asked.first + np.arange(asked.count)) & 0xFFFFFFFF
        known = self.serve(job, rank, seqs)
        # only missing results at the beginning keep the rank waiting
        if not known[0]:
            missing = int(np.argmax(known)) if known.any() else asked.count
            self.recall(job, rank, asked.first, min(missing, MAX_RECALL), complete=asked.complete)

    def answer_probes(self, job: Job, head: Headers) -> None:
        """Answers probes that a switch passed on because it holds nothing of the fragments. Those of one rank go together:
        where no switch sums, ranks ask for hundreds of fragments at once.
        """
        job.stats.probes += len(head)
        for rank in np.unique(head["bits"]).tolist():
            asked = head[head["bits"] == rank]
            if rank not in job.members:
                job.stats.malformed += len(asked)
                continue
            asked = asked[~self.serve(job, rank, asked["seq"].astype(np.int64))]
            if not len(asked):
                continue
            for seq in asked["seq"].tolist():
                self.recall(job, rank, seq)
            width = job.contribution_bits
            packets = np.zeros((len(asked), header_bytes(width)), np.uint8)
            reply = headers(packets)
            reply[:] = asked
            reply["first"] = first_byte(Kind.PROBE_REPLY)
            reply["flags"] = int(Flag.FROM_PS) | asked["flags"] & QUESTION_FLAGS
            bitmaps(packets, width)[:] = job.sums.bits(asked["seq"])
            self._out.append(Burst(job.members[rank].address, packets))

    def recall(self, job: Job, rank: int, seq: int, count: int = 1, *, complete: bool = False) -> None:
        """Asks ranks that are ahead for results that the server may have missed, on behalf of a rank that waits.

        Args: complete: the sum of the first fragment is known to be complete: every other rank is asked.
        """
        others = [m for m in job.members.values() if m.rank != rank]
        ahead = [m for m in others if complete or (m.oldest is not None and serial_distance(seq, m.oldest) > 0)]
        if ahead:
            for n in range(count):
                job.recalled.setdefault((seq + n) & 0xFFFFFFFF, set()).add(rank)
        packet = encode(Recall(first=seq, count=count), request=0, job=job.number, epoch=job.epoch, reply=True)
        self._out.extend(Burst.of(m.address, packet) for m in ahead)

    def serve_recalled(self, job: Job, seqs: Seqs) -> None:
        """Sends results that have just arrived to the ranks for which they were recalled."""
        for seq in seqs.tolist():
            for rank in job.recalled.pop(seq, ()):
                self.serve(job, rank, np.array([seq]))


def result_packets(job: Job, stored: Stored, flags: Flag) -> ByteRows:
    """Stored results of a job as packets of the parameter server.

    Args: flags: of all; COLLISION is added where it applies.
    """
    width = job.contribution_bits
    packets = np.empty((len(stored.seqs), size_of(Kind.RESULT, job.lanes, width)), np.uint8)
    head = headers(packets)
    head["first"] = first_byte(Kind.RESULT)
    head["flags"] = np.where(stored.collided, flags | Flag.COLLISION, flags)
    head["slot"] = job.slot_base + stored.seqs % job.slot_count
    head["job"] = job.number
    head["epoch"] = job.epoch
    head["exponent"] = stored.exponents
    head["tag"] = stored.tags
    head["seq"] = stored.seqs
    bitmaps(packets, width)[:] = words_of(job.fan_in, width)
    lanes_of(packets, width)[:] = stored.lanes
    return packets

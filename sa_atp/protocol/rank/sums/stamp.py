"""Writes the headers of packets: which fragments of which operation they are. (protocol section 3)"""

from collections.abc import Iterator, Sequence

import numpy as np

from sa_atp.basics.arrays import ByteRows, Headers, Lanes
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.job.serial import SEQ_MASK, serial_distance
from sa_atp.protocol.numbers.fragments import Run
from sa_atp.protocol.packets.header import bitmaps, first_byte, header_bytes, headers, lanes_of, size_of, words_of
from sa_atp.protocol.packets.question_numbers import FLAGS_OF_NUMBER
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.scattered_operation import ScatteredOperation


class Stamp:
    """Fills the fields that name fragments. Its columns are looked up once for all runs of a burst."""

    def __init__(self, head: Headers, member: Membership) -> None:
        """Args: head: of type HEADER."""
        self._head = head
        self._member = member
        self._seq, self._exponent, self._tag = head["seq"], head["exponent"], head["tag"]

    def name(self, at: int, operation: Operation, run: Run) -> None:
        """The fragments of a run, in the rows from `at` on."""
        end = at + len(run)
        self._seq[at:end] = (operation.first_seq + operation.plan.numbers_of(np.arange(run.first, run.end))) & SEQ_MASK
        self._exponent[at:end] = operation.exponent_of(run)
        self._tag[at:end] = operation.tag

    def finish(self) -> None:
        """Fills the fields that are the same in all packets, or follow from others."""
        self._head["slot"] = self._member.slot_base + self._seq % self._member.slot_count
        self._head["job"] = self._member.job
        self._head["epoch"] = self._member.epoch


def probes(member: Membership, operation: Operation, locals_: Sequence[int], numbers: Sequence[int]) -> ByteRows:
    """Packets that ask what is held of fragments, one in each row.

    Nothing of a probe is added to a sum: its bitmap names who asks, for an answer from the parameter server.

    Args: numbers: of the questions, below QUESTION_NUMBERS.
    """
    packets = np.zeros((len(locals_), header_bytes(member.contribution_bits)), np.uint8)
    head = headers(packets)
    head["first"] = first_byte(Kind.PROBE)
    head["flags"] = [FLAGS_OF_NUMBER[number] for number in numbers]
    stamp = Stamp(head, member)
    for at, local in enumerate(locals_):
        stamp.name(at, operation, next(operation.plan.runs(local, local + 1)))
    stamp.finish()
    head["bits"] = member.rank  # in the first word
    return packets


def known_results(member: Membership, operations: Sequence[Operation], first: int, count: int) -> ByteRows | None:
    """Sums of consecutive sequence numbers, as far as these operations know them; or None."""
    rows: list[tuple[int, Operation, int, Lanes]] = []
    for operation in operations:
        for number, local in _among(operation, first, count):
            found = operation.recall(local)
            if found is not None:
                rows.append(((operation.first_seq + number) & SEQ_MASK, operation, *found))
    if not rows:
        return None
    width = member.contribution_bits
    packets = np.empty((len(rows), size_of(Kind.RESULT, member.lanes, width)), np.uint8)
    head = headers(packets)
    head["first"] = first_byte(Kind.RESULT)
    head["flags"] = 0
    head["job"], head["epoch"] = member.job, member.epoch
    bitmaps(packets, width)[:] = words_of(member.fan_in, width)
    values = lanes_of(packets, width)
    for i, (seq, operation, exponent, lanes) in enumerate(rows):
        head["seq"][i] = seq
        head["slot"][i] = member.slot_base + seq % member.slot_count
        head["exponent"][i] = exponent
        head["tag"][i] = operation.tag
        values[i] = lanes
    return packets


def contributions_again(member: Membership, operations: Sequence[Operation], first: int, count: int) -> ByteRows | None:
    """Packets with this rank's contributions to fragments of which it has seen a bare result only, for consecutive
    sequence numbers; None: there are no such fragments.

    If the rank that needs such a sum has missed it too, nobody has it, and the parameter server adds it up again from these
    packets. They make a slot hand over what it holds; every second time they pass the leaf, which may still have its own
    sum. (protocol section 5.9)
    """
    rows = [
        (number, operation, *found)
        for operation in operations
        if isinstance(operation, ScatteredOperation)
        for number, local in _among(operation, first, count)
        if (found := operation.contribution(local)) is not None
    ]
    if not rows:
        return None
    width = member.contribution_bits
    packets = np.empty((len(rows), size_of(Kind.DATA, member.lanes, width)), np.uint8)
    head, bits, lanes = headers(packets), bitmaps(packets, width), lanes_of(packets, width)
    stamp = Stamp(head, member)
    for at, (_, operation, group, run) in enumerate(rows):
        group.write_lanes(run, operation.exponent_of(run), bits[at : at + 1], lanes[at : at + 1])
        stamp.name(at, operation, run)
        past = member.levels > 1 and operation.recalled % 2
        head["flags"][at] = Flag.RESEND | Flag.ON_BEHALF if past else Flag.RESEND
    head["first"] = first_byte(Kind.DATA)
    stamp.finish()
    for operation in {id(row[1]): row[1] for row in rows}.values():
        operation.recalled += 1
        operation.groups[0].rounded.forget_all()
    return packets


def _among(operation: Operation, first: int, count: int) -> Iterator[tuple[int, int]]:
    """An operation's fragments that have some of these consecutive sequence numbers.

    Yields: a fragment's number, counted from the operation's first one, and its position.
    """
    begin = serial_distance(operation.first_seq, first)
    start, end = max(0, begin), min(begin + count, operation.plan.numbers)
    for piece in operation.plan.pieces(start, max(0, end - start)):
        for n in range(piece.length):
            yield start + piece.skip + n, piece.first + n

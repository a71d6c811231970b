"""The memory of the compiled loop, and the meaning of its numbers.

Compiled code gets it as a frame (see `embedded.call_frame`): an address, and the places of arrays behind it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.net.shared_memory.layout import CHANNEL_BYTES, RECORDS
from sa_atp.switches.embedded.call_frame import PLACES as CALL_PLACES
from sa_atp.switches.embedded.call_frame import CallFrame
from sa_atp.switches.embedded.pipeline import PORTS
from sa_atp.switches.embedded.pipeline import ROW_BYTES as FRAME_BYTES
from sa_atp.switches.embedded.translate.deparsing import HEAD_ROW
from sa_atp.switches.embedded.translate.expressions import FRAME_WORDS

INTERFACE, UDP = range(2)  # kinds of ports

ROWS = 64  # messages that are received before the pipeline runs
FEW_ROWS, LARGE_BYTES = 8, 16_384  # fewer messages if they are large, so that they stay in the processor's cache
ROW_AT = 64  # where a message begins in its row: before it there is room for a frame's head
ROW_BYTES = ROW_AT + 65_600 + 64  # the largest IPv4 packet and the headers before it; no power of two, for the caches
FRAMES_IN = 2048  # of one call of the pipeline
LEAST_OUT = 4096  # packets that may leave the pipeline at once, and their bytes
LEAST_OUT_BYTES = 4 << 20
LEAST_RESULTS = 1 << 20  # room in the results for what leaves at once
MESSAGES = 256  # that leave in one call
PARTS = 4096  # of these messages
PUNTED_BYTES = 2 << 20  # of packets for the CPU port, until Python has taken them
PAGE = 4096
NO_DESCRIPTOR = 0xFFFFFFFF  # -1: poll leaves it out
COST_UNITS = 256  # of PORT_COSTS in a byte

MOST_CHANNELS = 64
# CHANNELS, by channel. SLOT: of its port; -1: there is no such channel. KEY: of the flow to its rank, see `leaving`. AT:
# where its memory begins in IN_ROWS. TAIL: records taken; HEAD, WRITTEN, OTHERS_TAIL: records and bytes written, and
# records that the rank has taken. BELL: the rank's; RUNG: for which sleep. ABOVE: where its packets go up, as in KEY.
(
    CHANNEL_SLOT, CHANNEL_KEY, CHANNEL_AT, CHANNEL_TAIL, CHANNEL_HEAD, CHANNEL_WRITTEN, CHANNEL_OTHERS_TAIL,
    CHANNEL_BELL, CHANNEL_RUNG, CHANNEL_BROKEN, CHANNEL_ABOVE,
) = range(11)  # fmt: skip
CHANNEL_ITEMS = 11

MESSAGE_WORDS = 8  # of struct mmsghdr: name, its length, iov, parts, control, its length, flags, bytes
NAME, NAME_BYTES, IOV, IOV_COUNT, CONTROL, CONTROL_LENGTH, FLAGS, SENT = range(MESSAGE_WORDS)
NAME_ROW = 16  # struct sockaddr_in
CONTROL_ROW = 64  # room for the control messages of one message

# PORT_COUNTERS, by port
OVERSIZED, REFUSED, NOT_DATAGRAMS, TOO_LONG = range(4)
# TOTALS. RESULTS_WRITTEN: bytes of the results that have ever been written or skipped; AT: where the output of this call of
# the pipeline begins there, -1: it is in OWN_OUT; KEPT: whether records stand for some of it. OUT_ROOM: bytes of an output.
# HELD_COUNT: frames that cross impaired links now; ORDER_NEXT: how many ever have begun to.
(
    PACKETS_IN,
    PACKETS_OUT,
    UNATTACHED,
    WITHOUT_PIPELINE,
    PUNTED,
    PUNTED_END,
    PUNTS_LOST,
    CALLS,
    IS_LARGE,
    ATTENTION,
    EVENT_FD,
    DOORBELL_FD,
    RESULTS_WRITTEN,
    RESULTS_AT,
    RESULTS_KEPT,
    OUT_ROOM,
    HELD_COUNT,
    HELD_ORDER_NEXT,
) = range(18)

# WIRES: each port has two rows, one for each direction of its link: to the switch, and from it. LOSS, DUPLICATE and REORDER
# are probabilities in units of 2**-32. FULL counts frames for which HELD had no room.
(
    WIRE_USED, WIRE_DELAY_US, WIRE_JITTER_US, WIRE_LOSS, WIRE_DUPLICATE, WIRE_REORDER, WIRE_RANDOM, WIRE_LAST_US,
    WIRE_CARRIED, WIRE_LOST, WIRE_DUPLICATED, WIRE_REORDERED, WIRE_FULL,
) = range(13)  # fmt: skip
WIRE_ITEMS = 13
SHARE = 1 << 32
REORDER_BY_US = 2_000  # how long a frame may be held back, so that later ones overtake it
# HELD: frames on their way over wires. The first HELD_COUNT rows are a heap of them. PLACE: the row of HELD_BYTES that has
# the frame's bytes; the rows behind the heap have the places that are free.
HELD_DUE, HELD_ORDER, HELD_PLACE, HELD_WIRE, HELD_LENGTH = range(5)
HELD_ITEMS = 5
MOST_HELD = 16_384

# --- places ---------------------------------------------------------------------------------------------------------

# An item for each port. MINE: 16 bytes, the destination (MAC, IP address, UDP port) of frames that arrive at a UDP port.
# JOINS: how many packets of one flow leave as one, until the kernel refuses; PROVED: it has taken one. POLLS: struct
# pollfd, one more for threads that want the pipeline, and one for the doorbell. COSTS: bytes of an interface's socket
# buffer that a waiting frame takes. SLOTS: the item of each port number; -1: none. TAKES: whether this core receives from
# the port; else another one does. HOLDS: whether frames may wait at an interface, because some did at the last look, or
# were sent since.
(
    PORT_NUMBERS, PORT_FDS, PORT_KINDS, PORT_JOINS, PORT_PROVED, PORT_SLOTS, PORT_MINE, PORT_POLLS, PORT_COUNTERS,
    PORT_COSTS, PORT_FIRST_FLOW, PORT_LAST_FLOW,
) = range(0, 12 * FRAME_WORDS, FRAME_WORDS)  # fmt: skip
# Messages that arrive, a row each (SLOTS: at which port; AT: where in ROWS; SIZES: of its datagrams; 0: as the kernel
# says), and the frames in them, the pipeline's input. Behind the rows, ROWS has the memory of channels.
(
    IN_ROWS, IN_MESSAGES, IN_PARTS, IN_NAMES, IN_CONTROLS, IN_SLOTS, IN_STARTS, IN_LENGTHS, IN_PORTS, IN_HEAD_OF,
    IN_HEADS,
) = range(12 * FRAME_WORDS, 23 * FRAME_WORDS, FRAME_WORDS)  # fmt: skip
# Packets that leave the pipeline, its output, and the next one of the same flow (-1: none).
(
    OUT_BYTES, OUT_HEADS, OUT_STARTS, OUT_LENGTHS, OUT_PORTS, OUT_SOURCES, NEXT_PACKET,
) = range(23 * FRAME_WORDS, 30 * FRAME_WORDS, FRAME_WORDS)  # fmt: skip
# Flows of a batch, the next one at the same port, and a hash table (flow + 1; 0: free). Messages that leave: the first
# packet of each, and how many it holds. PUNTED_PACKETS: for the CPU port, each its length (4 bytes) and its bytes.
(
    FLOW_KEYS, FLOW_FIRSTS, FLOW_LASTS, NEXT_FLOW_OF, FLOW_TABLE, OUT_MESSAGES, OUT_PARTS, OUT_NAMES, OUT_CONTROLS,
    MESSAGE_PACKETS, MESSAGE_COUNTS, PUNTED_PACKETS, TOTALS, DEPTHS, SCRATCH, KEPT, PORT_TAKES,
    PORT_HOLDS,
) = range(30 * FRAME_WORDS, 48 * FRAME_WORDS, FRAME_WORDS)  # fmt: skip
# STARTS: int64[channels * RECORDS], bytes ever written before each record for a rank. NAMES: ranks' struct sockaddr_in.
IN_AT, IN_SIZES, CHANNELS, CHANNEL_STARTS, CHANNEL_NAMES = range(48 * FRAME_WORDS, 53 * FRAME_WORDS, FRAME_WORDS)
# An item for each port. At a leaf's link up, the first of its *lines*: items behind those of ports, one for each channel,
# by which packets of its rank leave from the rank's own socket. -1: the port is no such link.
PORT_LINES = 53 * FRAME_WORDS
# RESULTS: what a switch shares with all ranks, see shared_memory/layout.py; RESULT_STARTS: int64[channels * RECORDS],
# RESULTS_WRITTEN when each record for a rank was written. OUT_BYTES is a part of RESULTS, or else OWN_OUT.
RESULTS, RESULT_STARTS, OWN_OUT = range(54 * FRAME_WORDS, 57 * FRAME_WORDS, FRAME_WORDS)
WIRES, HELD, HELD_BYTES = range(57 * FRAME_WORDS, 60 * FRAME_WORDS, FRAME_WORDS)
PLACES = 60
PROGRAM_OUT = CALL_PLACES["out"]


def _numbers(count: int, value: int = 0) -> AnyIntegers:
    return np.full(count, value, np.int64)


def _bytes(count: int) -> AnyIntegers:
    return np.zeros(count, np.uint8)


def _totals() -> AnyIntegers:
    found = _numbers(18)
    found[DOORBELL_FD] = NO_DESCRIPTOR
    found[RESULTS_AT] = -1
    found[OUT_ROOM] = LEAST_RESULTS
    return found


def ports(
    numbers: Sequence[int],
    fds: Sequence[int],
    kinds: Sequence[int],
    joins: Sequence[int],
    mine: Sequence[bytes],
    takes: Sequence[bool] | None = None,
    *,
    link_up: int | None = None,
    lines: int = 0,
) -> Mapping[int, AnyIntegers]:
    """Memory about ports, by place.

    Args: an item for each port; takes: None: all. link_up: number of the port whose packets leave by lines; lines: how
        many.
    """
    slots = _numbers(PORTS, -1)
    slots[list(numbers)] = np.arange(len(numbers))
    lines_of = _numbers(len(numbers) + lines, -1)
    if link_up is not None:
        lines_of[slots[link_up]] = len(numbers)
    takes = [*([True] * len(numbers) if takes is None else takes), *[False] * lines]
    numbers, fds = [*numbers, *[-1] * lines], [*fds, *[NO_DESCRIPTOR] * lines]
    kinds, joins, mine = [*kinds, *[UDP] * lines], [*joins, *[0] * lines], [*mine, *[b""] * lines]
    count = len(numbers)
    return {
        PORT_NUMBERS: np.array(numbers, np.int64),
        PORT_FDS: np.array(fds, np.int64),
        PORT_KINDS: np.array(kinds, np.int64),
        PORT_JOINS: np.array(joins, np.int64),
        PORT_PROVED: _numbers(count),
        PORT_SLOTS: slots,
        PORT_MINE: np.frombuffer(b"".join(each.ljust(16, b"\0") for each in mine), np.uint8).copy(),
        PORT_POLLS: _numbers(count + 2),
        PORT_TAKES: np.array(takes, np.int64),
        PORT_LINES: lines_of,
        PORT_HOLDS: _numbers(count, 1),
        PORT_COUNTERS: np.zeros((count, 4), np.int64),
        PORT_COSTS: _numbers(count, COST_UNITS),
        PORT_FIRST_FLOW: _numbers(count, -1),
        PORT_LAST_FLOW: _numbers(count, -1),
        TOTALS: _totals(),
        DEPTHS: _numbers(PORTS),
        SCRATCH: _numbers(8),
        KEPT: _bytes(HEAD_ROW),
    }


def arriving(
    rows: int = ROWS,
    frames: int = FRAMES_IN,
    channels: int = 0,
    memory: AnyIntegers | None = None,
    results: AnyIntegers | None = None,
) -> Mapping[int, AnyIntegers]:
    """Memory for arriving messages and for the frames in them, and of channels, by place.

    Args: channels: the most there can be; memory: for rows and channels, see `channel_at`. None: it is made. results:
        None: the switch shares none.
    """
    known = np.zeros((channels, CHANNEL_ITEMS), np.int64)
    known[:, CHANNEL_SLOT] = -1
    known[:, CHANNEL_AT] = [channel_at(c, rows) for c in range(channels)]
    return {
        IN_ROWS: _bytes(channel_at(channels, rows)) if memory is None else memory,
        IN_AT: np.arange(rows) * ROW_BYTES + ROW_AT,
        IN_SIZES: _numbers(rows),
        CHANNELS: known,
        CHANNEL_STARTS: _numbers(channels * RECORDS),
        RESULT_STARTS: _numbers(channels * RECORDS),
        RESULTS: _bytes(0) if results is None else results,
        CHANNEL_NAMES: _bytes(channels * NAME_ROW),
        IN_MESSAGES: _numbers(rows * MESSAGE_WORDS),
        IN_PARTS: _numbers(rows * 2),
        IN_NAMES: _bytes(rows * NAME_ROW),
        IN_CONTROLS: _bytes(rows * CONTROL_ROW),
        IN_SLOTS: _numbers(rows),
        IN_STARTS: _numbers(frames),
        IN_LENGTHS: _numbers(frames),
        IN_PORTS: _numbers(frames),
        IN_HEAD_OF: _numbers(frames),
        IN_HEADS: _bytes(2 * rows * HEAD_ROW),
    }


def crossing(wires: AnyIntegers | None = None, most: int = MOST_HELD) -> Mapping[int, AnyIntegers]:
    """Memory of impaired links and of the frames that cross them, by place.

    Args: wires: WIRES; None: no link is impaired. most: frames that cross at once.
    """
    most = 0 if wires is None else most
    held = np.zeros((most, HELD_ITEMS), np.int64)
    held[:, HELD_PLACE] = np.arange(most)
    return {
        WIRES: np.zeros((0, WIRE_ITEMS), np.int64) if wires is None else wires,
        HELD: held,
        HELD_BYTES: _bytes(most * FRAME_BYTES),
    }


def channel_at(c: int, rows: int = ROWS) -> int:
    """Where a channel's memory begins in IN_ROWS: at the beginning of a page, if IN_ROWS does."""
    return -(-rows * ROW_BYTES // PAGE) * PAGE + c * CHANNEL_BYTES


def leaving(packets: int = LEAST_OUT, out_bytes: int = LEAST_OUT_BYTES) -> Mapping[int, AnyIntegers]:
    """Memory for leaving packets and their bytes, by place."""
    of_packets = (
        OUT_STARTS, OUT_LENGTHS, OUT_PORTS, OUT_SOURCES, NEXT_PACKET, FLOW_KEYS, FLOW_FIRSTS, FLOW_LASTS, NEXT_FLOW_OF,
    )  # fmt: skip
    own = _bytes(out_bytes)
    return {
        OUT_BYTES: own,
        OWN_OUT: own,
        OUT_HEADS: _bytes(packets * HEAD_ROW),
        **{place: _numbers(packets) for place in of_packets},
        FLOW_TABLE: _numbers(1 << (2 * packets - 1).bit_length()),
        OUT_MESSAGES: _numbers(MESSAGES * MESSAGE_WORDS),
        OUT_PARTS: _numbers(PARTS * 2),
        OUT_NAMES: _bytes(MESSAGES * NAME_ROW),
        OUT_CONTROLS: _bytes(MESSAGES * CONTROL_ROW),
        MESSAGE_PACKETS: _numbers(MESSAGES),
        MESSAGE_COUNTS: _numbers(MESSAGES),
        PUNTED_PACKETS: _bytes(PUNTED_BYTES),
    }


def point_at_rows(memory: Mapping[int, AnyIntegers]) -> None:
    """Writes the fields of arriving messages that never change."""
    words = memory[IN_MESSAGES].reshape(-1, MESSAGE_WORDS)
    words[:, IOV] = memory[IN_PARTS].ctypes.data + 16 * np.arange(len(words))
    words[:, IOV_COUNT] = 1


def fill(frame: CallFrame, memory: Mapping[int, AnyIntegers]) -> None:
    for place, array in memory.items():
        frame.array(place, array)

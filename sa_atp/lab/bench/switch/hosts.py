"""Workers at the far ends of veth pairs, compiled, because plain Python would limit the switch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Mask
from sa_atp.basics.code_cache import digest_of, executed, source_of
from sa_atp.basics.folders import cache_folder
from sa_atp.lab.bench.switch.traffic import Contributions, Results
from sa_atp.net.sockets import offload
from sa_atp.net.sockets.mmsg import IOVEC, MMSGHDR
from sa_atp.net.sockets.ports import InterfacePort
from sa_atp.net.switch_process.datapath import state, system
from sa_atp.protocol.packets.frames import HEADERS_BYTES
from sa_atp.protocol.packets.header import first_byte
from sa_atp.protocol.packets.spec import Kind
from sa_atp.switches.embedded import bits
from sa_atp.switches.embedded.call_frame import CallFrame
from sa_atp.switches.embedded.translate.expressions import FRAME_WORDS

PLACES = 9
FDS, PAYLOADS, MESSAGES_OUT, ROWS_IN, WORDS_IN, DONE, EXPECTED, COUNTS, POLL = range(
    0, PLACES * FRAME_WORDS, FRAME_WORDS
)
SENT, MISSING, WRONG = range(3)  # in COUNTS
ROWS, ROW_BYTES = 32, 65_664
HEADS_BYTES = offload.VNET_BYTES + HEADERS_BYTES
RESULT_BYTE = first_byte(Kind.RESULT)
STALLED_US = 50_000


class Hosts:
    """Four workers. Each call continues after the fragments of the last one."""

    def __init__(self, ends: Sequence[InterfacePort], result_bytes: int) -> None:
        """Args: ends: an interface for each worker; result_bytes: size of a frame with a result, or a contribution."""
        self._ends = list(ends)
        self._size = result_bytes - HEADERS_BYTES
        self._frame = CallFrame(PLACES, compiled=True)
        rows = np.zeros(ROWS * ROW_BYTES, np.uint8)
        self._parts = np.zeros(ROWS, IOVEC)
        self._parts["base"] = rows.ctypes.data + np.arange(ROWS) * ROW_BYTES
        self._parts["length"] = ROW_BYTES
        words = np.zeros(ROWS, MMSGHDR)
        words["iov"] = self._parts.ctypes.data + np.arange(ROWS) * IOVEC.itemsize
        words["iov_count"] = 1
        self._frame.array(FDS, np.array([end.fileno() for end in self._ends], np.int64))
        self._frame.array(ROWS_IN, rows)
        self._frame.array(WORDS_IN, words.view(np.int64))
        self._frame.array(POLL, np.zeros(3, np.int64))  # and room for the time
        self._exchange = _compiled()
        self._prepared: dict[int, int] = {}  # by size of a burst: its number of messages
        self._kept: list[Any] = []

    def run(self, senders: Sequence[Contributions], results: Results, window: int, burst: int) -> int:
        """Sums fragments until less than a burst is left, or the switch is silent.

        Args: results: the range of fragments, updated with their results. Returns: number of fragments sent.
        """
        if burst not in self._prepared:
            self._prepare(senders, burst)
        done = np.zeros(len(results.done), np.uint8)
        counts = np.zeros(3, np.int64)
        self._frame.array(DONE, done)
        self._frame.array(EXPECTED, results.expected)
        self._frame.array(COUNTS, counts)
        self._exchange(self._frame.address, results.first, window, burst, self._size, self._prepared[burst])
        found: Mask = done.view(bool)
        results.done |= found
        results.wrong += int(counts[WRONG])
        results.missing_from = int(counts[MISSING])
        return int(counts[SENT])

    def _prepare(self, senders: Sequence[Contributions], burst: int) -> None:
        """Prepares a burst of each worker, but for the numbers of its fragments."""
        size = self._size
        payloads = np.stack([sender.payloads[:burst] for sender in senders]).reshape(-1)
        firsts = np.arange(0, burst, min(2 * offload.MOST_SEGMENTS, offload.MOST_BYTES // size))
        frames = np.diff(firsts, append=burst)
        parts = np.zeros((len(senders), len(firsts), 2), IOVEC)
        messages = np.zeros((len(senders), len(firsts)), MMSGHDR)
        heads = []
        for rank, sender in enumerate(senders):
            head = np.tile(sender.head, (len(firsts), 1))
            heads.append(offload.super_headers(head, np.full(len(firsts), HEADERS_BYTES + size), frames))
            parts[rank, :, 0]["base"] = heads[-1].ctypes.data + np.arange(len(firsts)) * HEADS_BYTES
            parts[rank, :, 0]["length"] = HEADS_BYTES
            parts[rank, :, 1]["base"] = payloads.ctypes.data + (rank * burst + firsts) * size
            parts[rank, :, 1]["length"] = frames * size
        messages["iov"] = parts.ctypes.data + np.arange(messages.size).reshape(messages.shape) * 2 * IOVEC.itemsize
        messages["iov_count"] = 2
        self._frame.array(PAYLOADS, payloads)
        self._frame.array(MESSAGES_OUT, messages.view(np.int64).reshape(-1))
        self._kept = [parts, heads]
        self._prepared = {burst: len(firsts)}


def _compiled() -> Any:
    from numba import int64

    path = Path(__file__).with_name("exchange.py")
    source = path.read_text(encoding="utf-8")
    operations = bits.compiled()
    namespace = {**operations, **system.calls(operations)}
    name = "sa_atp_bench_" + digest_of(
        source, Path(__file__).read_text(encoding="utf-8"), *map(source_of, (bits, system, state))
    )
    function = executed(name, [(path.name, source)], cache_folder(), namespace)["exchange"]
    function.compile((int64,) * 6)
    return function

"""A worker, and a parameter server, whose socket is a script: what they send comes back as results and answers, and beside
these comes what is nearly right. Whatever is compiled works on memory that nobody may touch behind its end.
"""

import random
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import ByteRows
from sa_atp.net.loop import steady_loop_kernels as loop
from sa_atp.net.shared_memory.ring_kernels import no_ring
from sa_atp.net.sockets.mmsg import sender_of
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.control import Terms
from sa_atp.protocol.packets.header import bitmaps, first_byte, headers, size_of, words_of
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.compiled import steady_kernels as s
from sa_atp.protocol.rank.compiled.steady import Steady
from sa_atp.protocol.rank.events import OperationDone
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.records import dtype_of
from sa_atp.protocol.server.job import Job, Member, State
from sa_atp.protocol.server.server import ParameterServer
from sa_atp.protocol.server.server_events import ServerSettings

from . import scripted_calls as c
from .guarded import Guarded
from .scripted_socket import FOUND_ROWS, Socket
from .wrong_messages import RIGHT, STALE, WRONG, changed

SWITCH, SERVER = ("10.0.0.1", 9), ("10.0.0.2", 9)
ADDRESSES = {sender_of(address): address for address in (SWITCH, SERVER)}
PATIENCE = 20  # turns without a stream that flows, after which little is wrong until one does
TURNS_WITHOUT = 250  # ... after which there is another connection


class WorkerWorld:
    """A worker with one sum after another, and a switch that mostly answers correctly."""

    def __init__(self, built: c.Built, rng: random.Random, seen: Counter[str]) -> None:
        self._built, self._rng, self.seen = built, rng, seen
        self._script = built.script
        bits = rng.choice((64, 64, 512))
        self._of = Membership(
            job=rng.randrange(1, 255), epoch=rng.randrange(256), rank=0, world_size=rng.choice((1, 2)),
            micro_batches=rng.choice((1, 1, 3)), lanes=256 if bits > 64 else rng.choice((64, 64, 256)),
            contribution_bits=bits, slot_base=16 * rng.randrange(4), slot_count=rng.choice((64, 256, 1024)),
            first_seq=rng.choice((0, 2**32 - 600, 2**31 - 300, rng.randrange(2**32))), data_address=SWITCH,
            server_address=SERVER, alive_every_us=10**9,
        )  # fmt: skip
        of = self._of
        self.worker = Worker(of, 1, first_request=7, kernels=_counting(built.worker, seen))
        self.size = size_of(Kind.DATA, of.lanes, of.contribution_bits)
        self.question_size = size_of(Kind.PROBE, of.lanes, of.contribution_bits)
        self.now = 1000
        self._socket = Socket(built, rng, seen)
        self._messages = self._socket.messages
        self._out = Guarded((rng.choice((7, 64, 256)), self.size), np.uint8)
        self.worker.write_over(len(self._out.array))
        self._loop = Guarded(1, dtype_of(loop.Loop))
        self._polls, self._times, self._held = Guarded(3, np.int64), Guarded(2, np.int64), Guarded(1, np.int32)
        self._ring = no_ring()
        self._own = [self._out, self._loop, self._polls, self._times, self._held]
        self._copies: dict[tuple[str, tuple[int, ...]], Guarded] = {}
        self._limits = {
            "rows": rng.choice((4, 40, 2048)), "asked": rng.choice((1, 1, 1, 2, 256)), "gaps": rng.choice((1, 256))
        }  # fmt: skip
        self._coming: deque[ByteRows] = deque()
        self._recent: deque[ByteRows] = deque(maxlen=8)
        self._lost: set[int] = set()  # sequence numbers of contributions that never arrived
        # short ones, since only what comes while their last fragments are under way can seem to be behind these
        self._sizes = [size * of.lanes - rng.randrange(of.lanes) for size in (60, rng.choice((300, 900, 3000)))]
        self._values = 0  # of the present operation
        self._whole = words_of(of.fan_in, of.contribution_bits)
        self._ours = words_of(self._of.bits_of(0), self._of.contribution_bits)
        self._operation = -1
        self._misery = rng.choice((0.0, 0.0, 0.0, 0.0, 0.002))
        self._wrong = rng.choice((0.1, 0.3, 0.6))
        self._without = PATIENCE  # turns since a stream has flowed

    def turn(self) -> bool:
        """Returns: whether the connection goes on."""
        rng, worker = self._rng, self.worker
        self.now += rng.choice((1, 100, 700)) if rng.random() < 0.995 else rng.choice((3_000, 120_000))
        due = worker.next_timer_us()
        if due is not None and due <= self.now:
            worker.handle_timer(self.now)
        self._go_on()
        if rng.random() < 0.5:
            self._transmit()
        self._come()
        self._script[c.CLOCK] = self.now
        lent = worker.steady(self.now)
        self._without = 0 if lent is not None else self._without + 1
        if lent is not None:
            self._run(lent)
        while not self._socket.is_over:
            bursts = self._socket.received()
            self.seen["given to the rules: bursts"] += len(bursts)
            worker.receive(bursts, self.now)
            if rng.random() < 0.3:
                self._transmit()
        self._collect()
        self._socket.check()
        return worker.error is None and self._without < TURNS_WITHOUT

    def _go_on(self) -> None:
        while (event := self.worker.next_event()) is not None:
            if isinstance(event, OperationDone) and event.operation == self._operation:
                self.worker.collectives.take(event.operation, np.zeros(self._values, np.float32))
                self._operation = -1
                self.seen["sums that were complete"] += 1
        if self._operation < 0 and self.worker.error is None:
            self._values = self._rng.choice(self._sizes)
            values = np.random.default_rng(self._rng.getrandbits(32)).standard_normal(self._values)
            if self._rng.random() < 0.05:
                values *= self._rng.choice((1e-3, 300.0))
            self._operation = self.worker.collectives.begin(self._values, ("key", self._values), self.now)
            bits = self._of.bits_of(0)
            self.worker.collectives.contribute(self._operation, [values.astype(np.float32)], bits, self.now)

    def _transmit(self) -> None:
        for _ in range(4):
            bursts = self.worker.transmit(self.now, self._rng.choice((None, 20_000, 100_000)))
            for burst in bursts:
                self._socket.send(burst.address, burst.data, self._rng.choice((1, 5, 64)))
            if not bursts:
                break

    def _collect(self) -> None:
        """The answers of a switch and the parameter server to the packets that were sent."""
        rng = self._rng
        for packets in self._socket.sent():
            if packets.shape[1] == self.size:
                head = headers(packets)
                head["first"], head["flags"] = first_byte(Kind.RESULT), 0
                if rng.random() < 0.01:
                    flag = rng.choice((Flag.CONGESTION, Flag.CONGESTION, Flag.COLLISION, Flag.FROM_PS))
                    head["flags"][rng.randrange(len(packets)) :] |= np.uint8(flag)
                bitmaps(packets, self._of.contribution_bits)[:] = self._whole
                kept = np.array([rng.random() >= self._misery for _ in packets])
                self._lost.difference_update(head["seq"].tolist())
                self._lost.update(head["seq"][~kept].tolist())
                if kept.any():
                    self._coming.append(packets[kept])
            elif packets.shape[1] == self.question_size and packets[0, 0] == first_byte(Kind.PROBE):
                headers(packets)["first"] = first_byte(Kind.PROBE_REPLY)
                is_lost = int(headers(packets)["seq"][0]) in self._lost
                bitmaps(packets, self._of.contribution_bits)[:] = 0 if is_lost else self._ours
                if rng.random() < 0.05:
                    headers(packets)["flags"] |= np.uint8(Flag.CONGESTION)
                self._coming.insert(max(0, len(self._coming) - rng.choice((0, 1))), packets)

    def _come(self) -> None:
        """Writes the next messages into the script."""
        rng, messages = self._rng, self._messages
        wrong = self._wrong if self._without < PATIENCE else 0.08
        messages.clear()
        messages.what = RIGHT
        answers = [packets for packets in self._coming if packets.shape[1] == self.question_size]
        if answers and rng.random() < 0.4:  # all at once, and then one too many
            self._coming = deque(packets for packets in self._coming if packets.shape[1] == self.size)
            messages.packets(np.concatenate([*answers, answers[-1]]), sender_of(SWITCH))
        for _ in range(rng.choice((0, 1, 2, 4, 8))):
            messages.what = RIGHT
            if self._coming and rng.random() >= wrong:
                packets = self._coming.popleft()
                if len(packets) > 1 and rng.random() < 0.2:
                    cut = rng.randrange(1, len(packets))
                    self._coming.appendleft(packets[cut:])
                    packets = packets[:cut]
                elif len(self._coming) > 1 and rng.random() < self._misery:
                    self._coming[0], packets = packets, self._coming[0]
                self._recent.append(packets)
                put = messages.packets(packets, sender_of(SERVER if rng.random() < 0.1 else SWITCH))
                if put < len(packets):
                    self._coming.appendleft(packets[put:])
            elif rng.random() < wrong and (self._recent or self._coming):
                newest = self._coming[-1] if self._coming else self._recent[-1]
                source = rng.choice([newest, rng.choice([*self._recent, *list(self._coming)[:3]])])
                is_changed = rng.random() < 0.7
                packets = changed(source, self._edges(), rng, self.seen) if is_changed else source
                if (
                    rng.random() < 0.2 and self._limits["rows"] < FOUND_ROWS
                ):  # each a stream, one more than there are rows for
                    packets = np.resize(packets, (self._limits["rows"] + 1, packets.shape[1]))[::-1]
                repeats = FOUND_ROWS if rng.random() < 0.02 else 1
                for _ in range(repeats):
                    if rng.random() < 0.5 or repeats > 1:
                        self.seen["drawn: shape as it should be"] += 1
                        messages.what = WRONG if is_changed else STALE
                        messages.packets(packets, sender_of(rng.choice((SWITCH, SWITCH, SERVER))))
                    else:
                        messages.what = WRONG
                        messages.wrong_shape(packets, sender_of(SWITCH))

    def _edges(self) -> list[int]:
        """Sequence numbers at which something begins or ends."""
        known = self.worker._operations.get(self._operation)
        if known is None:
            return [self._of.first_seq]
        plan, group = known.plan, known.groups[0] if known.groups else None
        places = [0, plan.data_start(0), plan.attempt_fragments, plan.data_start(1), plan.span]
        places += [known.oldest_pending() or 0, group.high if group is not None else 0]
        places += [plan.data_start(0) + plan.chunk_fragments * n for n in (1, plan.chunks - 1)]
        return [known.first_seq + place for place in places]

    def _run(self, lent: Steady) -> None:
        """The compiled loop, with memory behind each of whose ends nobody may touch."""
        rng, loop_, script = self._rng, self._loop.array[0], self._script
        assert lent.state is not None
        state = self._guarded("state", lent.state)
        question = state.question.view(np.uint8).reshape(1, -1)
        out = self._out.array
        segmented, room = self._socket.segmented.lent(SWITCH), self._socket.packed.lent()
        self._loop.array[...] = 0
        loop_["socket"], loop_["wake"], loop_["sender"], loop_["other_sender"] = (
            3,
            4,
            sender_of(SWITCH),
            sender_of(SERVER),
        )
        loop_["until_us"], loop_["pause_us"], loop_["resume_us"] = self.now + 200_000, rng.choice((0, 0, 50)), -1
        coalescing = loop_["coalescing"]
        coalescing["counted_us"], coalescing["longest_us"] = self.now, 8_000
        coalescing["enough"], coalescing["worth_it"] = 96, 1
        loop_["segments"], loop_["size"] = rng.choice((1, 5, 64)), self.size
        loop_["looks"], loop_["owes"] = rng.choice((1, 8)), rng.random() < 0.5
        loop_["pacer"]["pace"] = rng.choice((0.0, 0.5, 50.0))
        script[c.HELD] = rng.choice((0, 0, 0, 10_000, 1_000_000))
        script[c.SENDS], script[c.SIGNAL] = rng.choice((0, 0, 0, 1, 3)), rng.choice((0, 0, 0, 2))
        self._socket.may_read(out, question)
        memory = loop.Memory(
            polls=self._polls.array, times=self._times.array, held=self._held.array, incoming=loop.Incoming(*room),
            outgoing=loop.Outgoing(*segmented), ring=self._ring, out=out.view(np.uint32), data=out, question=question,
        )  # fmt: skip
        self._built.run(self._loop.array, memory, self._copy("values", lent.values), state)
        self._built.look()
        for each in (*self._own, *self._copies.values()):
            each.check()
        _take_back(lent.state, state)
        self.now = int(script[c.CLOCK])
        self._count(state)
        self.worker.resume(int(loop_["now_us"]))
        datagram, written, found = int(loop_["datagram"]), int(loop_["written"]), int(loop_["found"])
        if written:
            self._socket.send(SWITCH, out[datagram:written], 64)
        if loop_["asks"]:
            self._socket.send(SWITCH, lent.question, 1)
        if found:
            self.worker.receive(self._socket.packed.bursts(int(loop_["row"]), found, datagram), self.now)

    def _guarded(self, name: str, known: Any) -> Any:
        """The same, each array with a guard behind it."""
        if isinstance(known, tuple):
            return type(known)(*map(self._guarded, known._fields, known))  # type: ignore[attr-defined]
        return self._copy(name, known)

    def _copy(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """The same with a guard behind it; tables that only grow may be shorter."""
        size = array.shape[0]
        if name in self._limits:
            least = int(self.worker._steady._known) if name == "asked" and self.worker._steady is not None else 1
            size = min(size, max(self._limits[name], least))
        shape = (size, *array.shape[1:])
        known = self._copies.get((name, shape))
        if known is None:
            known = self._copies[name, shape] = Guarded(shape, array.dtype)
        known.array[...] = array[:size]
        return known.array

    def _count(self, state: s.State) -> None:
        """What has become of it."""
        loop_, seen, flow = self._loop.array[0], self.seen, state.flow[0]
        answered = int(flow["answered"])
        seen["loop: entered"] += 1
        seen["loop: turns"] += int(loop_["turns"])
        seen["loop: results taken"] += int(loop_["taken"]) - answered
        seen["loop: answers taken"] += answered
        seen["loop: contributions and questions sent"] += int(loop_["sent"])
        seen["loop: questions asked"] += int(flow["asked"] > 0)
        seen["loop: gaps between transmissions"] += int(flow["gaps"])
        seen["loop ended: sending was refused"] += int(loop_["written"] > 0)
        seen["loop ended: a question was refused"] += int(loop_["asks"] and loop_["written"] == 0)
        if loop_["found"] == 0:
            seen["loop ended: nothing is left, a timer, or sending is for the rules"] += 1
            return
        _, count, segment, sender = self._socket.packed._found[loop_["row"]].tolist()
        if flow["unfinished"]:
            why = "a chunk is complete"
        elif sender not in ADDRESSES:
            why = "a stranger"
        elif segment not in (self.size, self.question_size):
            why = "another size"
        elif count % segment:
            why = "a shorter datagram behind others"
        else:
            why = "content of an answer" if segment == self.question_size else "content of a result"
        seen[f"loop ended: {why}"] += 1


def _take_back(known: Any, copied: Any) -> None:
    """Writes what kernels have made of copies where these were made of."""
    if isinstance(known, tuple):
        for one, other in zip(known, copied, strict=True):
            _take_back(one, other)
    else:
        known[: len(copied)] = copied


class ServerWorld:
    """A parameter server with one job, to which ranks send contributions, and a switch results."""

    def __init__(self, built: c.Built, rng: random.Random, seen: Counter[str]) -> None:
        self._rng, self.seen = rng, seen
        bits = rng.choice((64, 64, 512))
        self._lanes = 256 if bits > 64 else rng.choice((64, 64, 256))
        ranks = rng.choice((1, 2, 4))
        self._job = Job(
            name="job", number=rng.randrange(1, 255), epoch=rng.randrange(256), terms=Terms(ranks, 2),
            lanes=self._lanes, contribution_bits=bits, slot_base=0, slot_count=1024,
            first_seq=rng.choice((0, 2**32 - 600, rng.randrange(2**32))),
        )  # fmt: skip
        self._job.state = State.RUNNING
        for rank in range(ranks):
            address = f"10.0.1.{rank + 1}", 9
            self._job.members[rank] = Member(rank=rank, address=address, incarnation=1, heard_us=0, has_spoken=True)
        self._senders = [sender_of(SWITCH), *(sender_of(each.address) for each in self._job.members.values())]
        settings = ServerSettings(lanes=self._lanes, contribution_bits=bits, switch_address=SWITCH)
        self._server = ParameterServer(settings, rng.getrandbits, _counting(built.worker, seen, "server: "))
        self._server.jobs[self._job.number] = self._job
        self._socket = Socket(built, rng, seen)
        self._bits, self._next, self.now = bits, 0, 1000
        self._wrong = rng.choice((0.4, 0.8))

    def turn(self) -> bool:
        rng, messages = self._rng, self._socket.messages
        self.now += 100
        messages.clear()
        for _ in range(rng.choice((1, 2, 4, 8))):
            packets = self._packets()
            sender = rng.choice(self._senders)
            messages.what = RIGHT
            if rng.random() >= self._wrong:
                messages.packets(packets, sender)
                continue
            messages.what = WRONG
            first = self._job.first_seq
            edges = [first, first + self._next, first + 256, first + (1 << 20), first + 2**31]
            wrong = packets if rng.random() < 0.3 else changed(packets, edges, rng, self.seen)
            if rng.random() < 0.5:
                messages.packets(wrong, sender)
            else:
                messages.wrong_shape(wrong, sender)
        while not self._socket.is_over:
            bursts = self._socket.received()
            self.seen["server: bursts"] += len(bursts)
            kept = self._job.stats.results_kept
            self._server.receive(bursts, self.now)
            self.seen["server: results kept"] += self._job.stats.results_kept - kept
        for burst in self._server.transmit(self.now, 1 << 20):
            self.seen["server: sent"] += len(burst)
            self._socket.send(burst.address, burst.data, rng.choice((1, 5, 64)))
        self._socket.sent()
        self._socket.check()
        return self._job.state is State.RUNNING and self._next < 4000

    def _packets(self) -> ByteRows:
        rng, job = self._rng, self._job
        kind = rng.choice((Kind.RESULT, Kind.RESULT, Kind.DATA, Kind.PROBE))
        made = np.zeros((rng.choice((1, 3, 40, 200)), size_of(kind, self._lanes, self._bits)), np.uint8)
        head = headers(made)
        head["first"], head["job"], head["epoch"] = first_byte(kind), job.number, job.epoch
        head["exponent"], head["tag"] = 5, 1
        first = self._next if rng.random() < 0.7 else rng.randrange(self._next + 1)
        head["seq"] = (job.first_seq + first + np.arange(len(made))) % 2**32
        whole = kind is Kind.RESULT or (kind is Kind.DATA and rng.random() < 0.2)
        bitmaps(made, self._bits)[:] = words_of((1 << 2 * job.world_size) - 1 if whole else 3, self._bits)
        if kind is not Kind.PROBE:
            self._next = max(self._next, first + len(made))
        return made


def _counting(kernels: Any, seen: Counter[str], whose: str = "rules: ") -> Any:
    """The same functions, which count how often each accepted its input."""

    def streams(*arguments: Any) -> int:
        count = int(kernels.streams(*arguments))
        seen[f"{whose}streams, {'none' if count < 0 else 'one' if count == 1 else 'several'}"] += 1
        return count

    def take(*arguments: Any) -> bool:
        is_taken = bool(kernels.take(*arguments))
        seen[f"{whose}take, {'all' if is_taken else 'nothing'}"] += 1
        return is_taken

    def fill(*arguments: Any) -> int:
        count = int(kernels.fill(*arguments))
        seen[f"{whose}fill, {'all' if count == arguments[3] - arguments[2] else 'a part, or nothing'}"] += 1
        return count

    return SimpleNamespace(streams=streams, take=take, fill=fill, dequantise=kernels.dequantise)

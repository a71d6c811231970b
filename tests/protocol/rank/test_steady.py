"""Streams that flow, by kernels beside the rules: the same bytes out, the same timers, the same state after.

Two connections of one rank live through the same things. One has only the rules; the other lends what it knows to kernels
whenever a stream flows, and takes it back when they say that something is not theirs.
"""

import random
from collections import deque

import numpy as np
import pytest
from helpers.twins import SERVER, SWITCH, Twins, damaged, member, results_of, same_bursts, values
from msgspec.structs import replace
from numpy.typing import NDArray

from sa_atp.basics.arrays import ByteRows
from sa_atp.net.loop.compiled import steady_kernels
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.header import bitmaps, first_byte, headers, size_of, words_of
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.compiled import steady
from sa_atp.protocol.rank.compiled.steady import Steady
from sa_atp.protocol.rank.events import OperationDone
from sa_atp.protocol.rank.pace.sending import MAX_BURST

SEEDS = 20
MOST_PARTS = 4  # given one by one; with more, one array is given for all of a rank's contributions


class LendingTwins(Twins):
    """Twins whose `fast` lends what it knows to kernels, as long as `lent` is there."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        # in half of them somebody else contributes as well, so that a sum may wait for that
        alone = member(rng, seed)
        ranks = 1 + seed % 2 if 2 * alone.micro_batches <= alone.contribution_bits else 1
        of = replace(alone, world_size=ranks)
        super().__init__(of)
        self.kernels = steady_kernels()
        self.size = size_of(Kind.DATA, of.lanes, of.contribution_bits)
        self.question_size = size_of(Kind.PROBE, of.lanes, of.contribution_bits)
        self.room = np.zeros((MAX_BURST, self.size // 4), np.uint32)
        self.lent: Steady | None = None
        self.taken_us = 0
        self.taken = self.sent = self.joined = self.asked = self.answered = self.sent_when_lossy = 0

    def lend(self, now: int) -> None:
        if self.lent is None:
            self.lent = self.fast.steady(now)
            self.taken_us = now
            self.check()

    def take_back(self) -> None:
        if self.lent is not None:
            self.lent = None
            self.fast.resume(self.taken_us)

    def check(self) -> None:
        """While it is lent, what the loop asks is answered by kernels."""
        if self.lent is not None:
            assert self.kernels.due_us(self.lent.state) == self.plain.next_timer_us()
            assert self.kernels.may_gather(self.lent.state) == self.plain.may_gather()

    @property
    def flow(self) -> NDArray[np.void]:
        assert self.lent is not None
        assert self.lent.state is not None
        flow: NDArray[np.void] = self.lent.state.flow
        return flow

    def receive(self, packets: ByteRows, address: Address, now: int) -> None:
        self.plain.receive([Burst(address, packets.copy())], now)
        if self.lent is not None and packets.shape[1] == self.size:
            self.taken_us = now
            taken = self.kernels.receive(np.ascontiguousarray(packets).view(np.uint32).copy(), now, self.lent.state)
            self.taken += taken
            packets = packets[taken:]
            if len(packets) or self.flow["unfinished"][0]:
                self.take_back()
        while self.lent is not None and len(packets) and packets.shape[1] == self.question_size:
            words = np.ascontiguousarray(packets[0]).view(np.uint32).copy()
            if not self.kernels.answer(words, now, self.lent.state):
                break
            self.taken_us = now
            self.answered += 1
            packets = packets[1:]
        if len(packets):
            self.take_back()
            self.fast.receive([Burst(address, packets.copy())], now)
        self.check()

    def transmit(self, now: int, budget: int | None = None) -> list[Burst]:
        wanted = self.plain.transmit(now, budget)
        found: list[Burst] | None = None
        if self.lent is not None:
            state_ = self.lent.state
            given = -1 if budget is None else budget
            count = self.kernels.transmit(self.room, given, now, self.lent.values, state_)
            if count < 0:
                self.take_back()
            else:
                self.sent += count
                self.sent_when_lossy += count * self.plain._prober.expects_losses
                self.joined += count if len(self.lent.values) > 1 else 0
                assert bool(self.flow["has_more"][0]) == self.plain.has_more
                found = [Burst(SWITCH, self.room.view(np.uint8)[:count])] if count else []
                if self.flow["asks"][0]:
                    self.asked += 1
                    found.append(Burst(SWITCH, self.lent.question))
        if found is None:
            found = self.fast.transmit(now, budget)
        self.check()
        return same_bursts(wanted, found)

    def timer(self, now: int) -> None:
        due = self.plain.next_timer_us()
        if due is not None and now >= due:
            self.take_back()
            self.handle_timer(now)

    def check_same(self) -> None:
        self.take_back()
        super().check_same()


class Network:
    """A switch or a parameter server, and the ways there and back.

    Calm: all arrives. Lossy: some packets do not, and answers say which. Wild: answers say anything, results are damaged.
    """

    def __init__(self, rng: random.Random, of: Membership, kind: str) -> None:
        self._rng, self._of, self.kind = rng, of, kind
        self._whole = words_of(of.fan_in, of.contribution_bits)
        self._waits = rng.choice((0.0, 1.0, 0.5))
        self._answered = {"calm": 1.0, "lossy": 0.97, "wild": rng.choice((1.0, 0.9, 0.0))}[kind]
        self._loss = rng.choice((0.003, 0.02, 0.1)) if kind == "lossy" else 0.0
        self._there: set[int] = set()  # numbers of fragments that the switch has
        self.under_way: deque[ByteRows] = deque()

    def take(self, packets: ByteRows) -> None:
        """Takes what a rank sends: contributions, or questions."""
        if packets[0, 0] != first_byte(Kind.PROBE):
            arrived = packets[self._arrive(len(packets))]
            self._there.update(headers(arrived)["seq"].tolist())
            results = results_of(self._rng, arrived) if len(arrived) else arrived
            if self.kind != "wild":  # the parameter server finishes nothing
                headers(results)["flags"] &= np.uint8(Flag.CONGESTION | Flag.COLLISION * (self.kind == "calm"))
            bitmaps(results, self._of.contribution_bits)[:] = self._whole
            results = results[self._arrive(len(results))]
            if len(results):
                self.under_way.append(results)
        elif self._rng.random() < self._answered:
            # of what waits for others a switch tells before it has the sum
            at = 0 if self.kind == "wild" else len(self.under_way) - (self._rng.random() < self._waits)
            self.under_way.insert(max(0, at), self._answers(packets))

    def _arrive(self, count: int) -> NDArray[np.bool_]:
        return np.array([self._rng.random() >= self._loss for _ in range(count)], bool)

    def _answers(self, questions: ByteRows) -> ByteRows:
        made, rng, of = questions.copy(), self._rng, self._of
        head = headers(made)
        head["first"] = first_byte(Kind.PROBE_REPLY)
        for row in range(len(made)):
            if rng.random() < 0.2:
                head["flags"][row] |= np.uint8(
                    rng.choice((Flag.CONGESTION, Flag.FROM_PS)) if self.kind == "wild" else Flag.CONGESTION
                )
            held = of.bits_of(of.rank)
            if self.kind == "lossy" and (int(head["seq"][row]) not in self._there or rng.random() < 0.1):
                held = 0 if int(head["seq"][row]) not in self._there else of.fan_in
            elif self.kind == "wild" and rng.random() < 0.1:
                held = rng.choice((0, of.fan_in, rng.getrandbits(of.contributions)))
            bitmaps(made, of.contribution_bits)[row] = words_of(held, of.contribution_bits)
        return made


def live(seed: int, twins: LendingTwins, rng: random.Random) -> None:
    """Some sums, with a network that loses nothing most of the time."""
    of, now = twins.of, 1000
    magnitude, misery = rng.choice((1.0, 0.01, 300.0)), rng.choice((0.0, 0.0, 0.02, 0.2))
    network = Network(rng, of, rng.choices(("calm", "lossy", "wild"), (5, 4, 2))[0])
    misery *= network.kind != "lossy"
    under_way, sizes = network.under_way, dict[int, int]()
    # where a sum has somewhat less fragments than there are slots, the turn of the next one comes in its middle
    made = (rng.randrange(30, 260) if rng.random() < 0.7 else max(30, of.slot_count * 5 // 8)) * of.lanes
    for n in range(6):
        now += rng.choice((1, 700, 120_000))
        count = made - (rng.randrange(of.lanes) if n % 2 else 0)
        twins.take_back()
        open_ = rng.choice((1, 1, 3))  # sums at a time
        for m in range(open_):
            usual = np.random.default_rng(seed + n + m).standard_normal(count).astype(np.float32)
            given = values(rng, count, magnitude) if rng.random() < 0.2 else usual
            parts = [given]
            if 1 < of.micro_batches <= MOST_PARTS and rng.random() < 0.5:
                parts += [values(rng, count, magnitude) for _ in range(of.micro_batches - 1)]
            both = [worker.collectives for worker in twins.both]
            index = [each.begin(count, ("key", m, made // of.lanes), now) for each in both]
            for each in both:
                each.contribute(index[0], parts, of.bits_of(of.rank), now)
            sizes[index[0]] = count
        if rng.random() < 0.5:
            twins.lend(now)
        for _ in range(600 * open_):
            now += rng.choice((1, 100, 700)) if rng.random() < 0.99 else rng.choice((3_000, 120_000))
            twins.timer(now)
            if rng.random() < 0.5:
                for _ in range(3):
                    bursts = twins.transmit(now, rng.choice((None, 5_000, 100_000)))
                    for left in bursts:
                        if left.data.shape[1] == twins.size or left.data[0, 0] == first_byte(Kind.PROBE):
                            network.take(left.data)
                    if not bursts:
                        break
            if under_way and rng.random() < 0.7:
                packets = under_way.popleft()
                if rng.random() < 0.3 and len(packets) > 1:  # the kernel cuts where it likes
                    cut = rng.randrange(1, len(packets))
                    under_way.appendleft(packets[cut:])
                    packets = packets[:cut]
                for burst in damaged(rng, packets) if rng.random() < misery else [packets]:
                    twins.receive(burst, SERVER if rng.random() < 0.1 else SWITCH, now)
                twins.lend(now)
            if rng.random() < 0.01:
                twins.check_same()
            if twins.plain._events or twins.fast._events:
                open_ -= compare_events(twins, sizes)
                if open_ == 0:
                    break
        compare_events(twins, sizes)


def compare_events(twins: LendingTwins, sizes: dict[int, int]) -> int:
    """Compares what both have to say, and all sums. Args: sizes: values of each operation. Returns: how many sums."""
    twins.check_same()
    done = 0
    while (event := twins.next_event()) is not None:
        if isinstance(event, OperationDone):
            factor = (1.0, 1 / 3, -1.0, 1e30)[event.operation % 4]
            twins.take(event.operation, np.zeros(sizes[event.operation], np.float32), factor)
            done += 1
    return done


def test_a_stream_that_flows_does_what_the_rules_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "LEAST_MISSING", 4)
    taken = sent = joined = asked = answered = lossy = of_all = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        twins = LendingTwins(rng, seed)
        live(seed, twins, rng)
        taken, sent, of_all = taken + twins.taken, sent + twins.sent, of_all + twins.plain.stats.results
        joined, asked, answered = joined + twins.joined, asked + twins.asked, answered + twins.answered
        lossy += twins.sent_when_lossy
    # else the rules would have been compared with themselves
    assert taken > of_all / 6
    assert sent > of_all / 6
    assert joined > sent / 20
    assert lossy > sent / 10
    assert asked > SEEDS
    assert answered > SEEDS

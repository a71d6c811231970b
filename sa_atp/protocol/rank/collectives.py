"""Collective operations as a program sees them: begun, contributed to, asked about, taken when they are done.

A program names each by its number. (protocol sections 5.1 and 5.10)
"""

from collections.abc import Sequence

from sa_atp.basics.arrays import Addends, Integers
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.log.rank_events import Contributed, SumBegun
from sa_atp.protocol.rank.compiled.steady import Steady
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.pace.receiving import Receiver
from sa_atp.protocol.rank.recovery.fetching import Fetching
from sa_atp.protocol.rank.recovery.probing import Prober
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.part_group import PartGroup


class Collectives:
    """A connection's collective operations. Times are microseconds of the connection's clock."""

    def __init__(
        self, connection: Connection, prober: Prober, fetching: Fetching, receiver: Receiver, steady: Steady | None
    ) -> None:
        """Args: steady: what kernels keep of a sum, and drop when it is taken; None: there are no kernels."""
        self._log, self._member = connection.log, connection.membership
        self._operations, self._leaf = connection.operations, connection.leaf
        self._probe_timer, self._round_trip = connection.probe_timer, connection.round_trip
        self._common, self._waits = connection.common, connection.waits
        self._prober, self._fetching, self._receiver, self._steady = prober, fetching, receiver, steady
        self.to_probe: list[int] = []
        """Operations that are asked for behind what is sent next."""

    def begin(self, values: int, key: object | None, now_us: int, scale: float = 1.0, *, whole: bool = False) -> int:
        """Starts an operation; every rank must start the same ones in the same order.

        Args:
            values: length of the tensor.
            key: names the tensor from step to step, so that its scale can be predicted; None: it is gathered.
            scale: by which the program multiplies the sum; all ranks must say the same.
            whole: whether the values are whole numbers, int32, whose sum is exact as long as it is below 2**30.

        Returns: the operation's number, for `contribute`.
        """
        if self._operations.oldest is None:
            self._leaf.set_begun(False)  # what was known was of another step
        index = self._operations.begin(values, key, scale, whole=whole)
        if self._log is not nobody:  # a key's text is the program's to make
            self._log(SumBegun(index, values, None if key is None else str(key)))
        self.open_waiting(now_us)
        return index

    def begin_gather(self, words: int, name: object, now_us: int) -> int:
        """Starts an all-gather, an operation as `begin` does. (section 5.10)

        Args: words: length of each rank's part; name: all ranks must say the same.
        Returns: the operation's number, for `contribute_part`.
        """
        index = self._operations.begin_gather(words, name)
        self._log(SumBegun(index, words * self._member.world_size, None))
        self.open_waiting(now_us)
        return index

    def contribute(
        self, operation: int, parts: Sequence[Addends], bits: int, now_us: int, *, on_behalf: bool = False
    ) -> None:
        """Adds values to an operation. Args: see ContributionGroup; the arrays must stay as they are until it is done."""
        plan = self._operations.plan_of(operation)
        if plan is None:
            return  # done already: others have sent these contributions
        group = ContributionGroup(
            plan,
            bits,
            [plan.laid_out(part) for part in parts],
            self._operations.contributions,
            on_behalf=on_behalf,
            under_way=self._operations.under_way,
        )
        group.bypass_leaf = self._leaf.applies_to(bits, on_behalf=on_behalf)
        self._add(operation, group, now_us)

    def contribute_part(self, operation: int, part: Integers, now_us: int) -> None:
        """Gives this rank's part to an all-gather. Args: part: int32[words], see PartGroup; it must stay as it is until the
        operation is done.
        """
        plan, member = self._operations.plan_of(operation), self._member
        assert plan is not None  # it is not done without this part
        own = member.bits_of(member.rank)
        under_way = self._operations.under_way
        self._add(
            operation, PartGroup(plan, member.rank, member.world_size, part, member.fan_in, own, under_way), now_us
        )

    def _add(self, operation: int, group: ContributionGroup, now_us: int) -> None:
        group.sending.append((now_us, now_us))
        self._probe_timer.on_values(now_us)
        if self._log is not nobody:
            bits, ranks = group.given_bits, self._member.map.ranks_of(group.given_bits)
            self._log(Contributed(operation, hex(bits), ranks, group.on_behalf, group.bypass_leaf))
        self._operations.add(operation, group)

    def probe(self, operation: int) -> None:
        """Asks what the switch holds of an operation's oldest fragment, without waiting for silence, and behind what can be
        sent of it now.

        The answer comes as a WaitingFor event, if all of our own contributions are there and others are missing.
        """
        self.to_probe.append(operation)

    def sending(self, operation: int) -> tuple[tuple[int, int], ...]:
        """Returns the times from which, and until which, our first contribution to an operation left for the first time.

        Nothing that was sent again is in it, nor the time spent waiting for other workers (ContributionGroup.on_sent).
        """
        groups = self._operations[operation].groups
        return tuple(groups[0].sending) if groups else ()

    def sent_share(self, operation: int) -> float:
        """How much of our first contribution to an operation has left: others may have done the rest."""
        groups = self._operations[operation].groups
        return groups[0].sent_share if groups else 0.0

    def note_wait(self, operation: int, sending: Sequence[tuple[int, int]], now_us: int) -> None:
        """Tells the parameter server how long we waited for a done operation. (section 7.7) Args: sending: see there."""
        self._waits.note_done(operation, sending, self._round_trip.smoothed_us, now_us)

    @property
    def begun(self) -> int:
        """Operations begun so far."""
        return self._operations.begun

    @property
    def is_waiting(self) -> bool:
        """Whether operations are under way."""
        return self._operations.oldest is not None

    def overtaken(self) -> list[int]:
        """Returns the open operations in which other ranks do this rank's part: some rank has all of the sums, or sums
        come although this rank has contributed nothing.
        """
        return [
            operation.index
            for operation in self._operations.active()
            if self._operations.is_complete(operation) or (not operation.groups and operation.missing_share < 1)
        ]

    def take(self, operation: int, out: Addends, factor: float = 1.0) -> Operation:
        """Writes the sums of an operation that is done, multiplied by a factor.

        Args: out: float32[values]; int32[values] for whole numbers; uint8[ranks, bytes of a part] for an all-gather.
        """
        write = None if self._common is None else self._common.write_values
        done = self._operations.take(operation, out, factor, write)
        self._fetching.keep(done)
        if self._steady is not None:
            self._steady.forget(done)
        return done

    def open_waiting(self, now_us: int) -> None:
        """Opens begun operations, as far as something of them may be sent."""
        if self._operations.open_waiting():
            self._probe_timer.on_progress(now_us)

    def probe_now(self, now_us: int) -> None:
        """Asks for the operations in `to_probe`; those that are done by now are left out."""
        for number in self.to_probe:
            operation = self._operations.get(number)
            oldest = None if operation is None or operation.is_done() else operation.oldest_pending()
            if operation is not None and oldest is not None:
                self._prober.ask(operation, oldest, now_us)
        self.to_probe.clear()

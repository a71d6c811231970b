"""A job whose parameters are on a server, in virtual time: real gradients, and messages that cross a network.

In an exact simulation, workers that begin together stay together for ever and compete for the server's link in every step,
which real hosts never do (phase effects: Floyd and Jacobson, On traffic phase effects in packet-switched gateways, 1992).
So each message leaves a little late, by a random time.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from sa_atp.basics.arrays import Octets, Values
from sa_atp.lab.parameters.rules.messages import SERVER, Outgoing, Tasks, encode
from sa_atp.lab.parameters.rules.server import ParamsServer
from sa_atp.lab.simulator.network import Clock


class ByteCarrier(Protocol):
    """A network that carries bytes between hosts. Hosts are ranks, and SERVER."""

    def transfer(self, source: int, target: int, payload: float) -> "Future[None]":
        """Carries so many bytes. Returns: a future that is done when the last byte has arrived."""


@dataclass(slots=True)
class _Parcel:
    deliver: Callable[[], None]
    is_there: bool = False


class VirtualParameters:
    """The server of a job, and the connections to and from its workers."""

    def __init__(
        self,
        clock: Clock,
        network: ByteCarrier,
        server: ParamsServer,
        samples: Callable[[Tasks], Octets],
        late_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """Args:
        samples: returns the samples of tasks that are transferred, uint8[n], which load the network, too.
        late_us: draws the delay with which a host sends a message.
        """
        self.clock = clock
        self.server = server
        self._network = network
        self._samples = samples
        self._late_us = late_us
        # connections from one host to another, each of which delivers in order, as TCP does
        self._ways: defaultdict[tuple[int, int], deque[_Parcel]] = defaultdict(deque)
        self._hosts: dict[int, VirtualHost] = {}

    def host(self, rank: int) -> "VirtualHost":
        found = self._hosts[rank] = VirtualHost(self, rank, self.server.rules.terms.world_size)
        return found

    def send(self, sender: int, outgoing: Outgoing) -> None:
        """Sends a message. Messages among workers pass through the server, on the workers' streams."""
        size = len(encode(outgoing.message)) + (outgoing.values.nbytes if outgoing.values is not None else 0)
        if outgoing.samples_of:
            size += self._samples(outgoing.samples_of).nbytes

        def deliver() -> None:
            self._deliver(sender, outgoing.to, outgoing.message, outgoing.values)

        if SERVER in (sender, outgoing.to):
            self._carry(sender, outgoing.to, size, deliver)
        else:
            self._carry(sender, SERVER, size, lambda: self._carry(SERVER, outgoing.to, size, deliver))

    def _carry(self, source: int, target: int, size: int, deliver: Callable[[], None]) -> None:
        """Carries so many bytes. Args: deliver: called when these and all earlier bytes on this connection have arrived."""
        parcel = _Parcel(deliver)
        way = self._ways[source, target]
        way.append(parcel)

        def arrived(_: "Future[None]") -> None:
            parcel.is_there = True
            while way and way[0].is_there:
                way.popleft().deliver()

        def leaves() -> None:
            self._network.transfer(source, target, size).add_done_callback(arrived)

        self.clock.at(self.clock.now_us + self._late_us(), leaves)

    def _deliver(self, sender: int, to: int, message: Any, values: Values | None) -> None:
        if to != SERVER:
            self._hosts[to].hear(sender, message, values)
            return
        for answer in self.server.receive(sender, message, values, self.clock.now_us):
            self.send(SERVER, answer)


class VirtualHost:
    """A `ParameterHost` in virtual time."""

    def __init__(self, job: VirtualParameters, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.hear: Callable[[int, Any, Values | None], None] = lambda *_: None
        self._job = job

    def now_us(self) -> int:
        return self._job.clock.now_us

    def listen(self, receive: Callable[[int, Any, Values | None], None]) -> None:
        self.hear = receive

    def send(self, outgoing: Outgoing) -> None:
        self._job.send(self.rank, outgoing)

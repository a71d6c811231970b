"""The parameter server as a process: its connection on a socket, and the switches that it controls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sa_atp.basics.terminal import say
from sa_atp.net.clock import now_us
from sa_atp.net.logs.writing import LogFolder
from sa_atp.net.loop.compiled import plan_kernels, socket_kernels, worker_kernels
from sa_atp.net.loop.driver import LONGEST_PAUSE_US, Driver
from sa_atp.net.parameter_server.installer import Installer
from sa_atp.net.shared_memory.open_channel import open_channel
from sa_atp.net.sockets import mtu
from sa_atp.net.sockets.addresses import ANY, is_here, sources_of
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.net.watching import door
from sa_atp.net.watching.of_server import of_server
from sa_atp.net.watching.states import ServerState
from sa_atp.protocol.log.event import of_nobody
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.server.job import Job, State
from sa_atp.protocol.server.server import ParameterServer
from sa_atp.protocol.server.server_events import Admit, Retire, ServerEvent, ServerSettings
from sa_atp.switches.control import fabric
from sa_atp.switches.control.fabric import Keeper, SwitchPlace

# how long copies of results that no rank has asked for are gathered, so that workers have the processor
WORTH_IT, ENOUGH_BYTES = 2, 1 << 20
UNASKED_PAUSE_US = 30_000  # ... while no rank is likely to ask


class ServerProcess:
    def __init__(
        self,
        settings: ServerSettings,
        listen: Address,
        random_bits: Callable[[int], int],
        logs: LogFolder | None = None,
    ) -> None:
        """Args: logs: writes logs of decisions; None: nothing is logged. Raises: UserError: the address cannot be bound."""
        self.settings = settings
        self.server = ParameterServer(
            settings,
            random_bits,
            worker_kernels(),
            of_nobody if logs is None else logs.server,
            plan_kernels(),
        )
        socket = UdpSocket(listen)
        socket.use_kernels(socket_kernels())
        self.address = socket.address
        self.server.is_here = is_here
        self._known_as: dict[int, Address] = {}  # what switches know it as, by number of the job
        size = size_of(Kind.RESULT, settings.lanes, settings.contribution_bits)
        enough = max(WORTH_IT, ENOUGH_BYTES // size)
        self._driver = Driver(self.server, socket, self._take_events, worth_it=WORTH_IT, enough=enough)
        self._driver.expect(size)
        if settings.switch_address is not None:
            self._driver.share_memory(partial(open_channel, settings.switch_address, self.address))
        self._installer: Installer | None = None
        self._switches: list[str] = []  # their P4Runtime addresses
        self.over: Callable[[Job], None] = lambda job: None
        """Called when a job is over, and of those that run when this ends."""

    def use_switches(self, places: Sequence[SwitchPlace]) -> None:
        """Brings switches up, and from now on installs jobs on them.

        Raises: UserError: a switch's target has no program with this number of lanes; ControlError: a switch does not
            answer. The process cannot be used after that.
        """
        try:
            keepers = [self._keeper(place) for place in places]
            for keeper in keepers:
                keeper.bring_up()
        except BaseException:
            self._driver.close()
            raise
        self.server.has_bare_results = all(keeper.has_bare_results for keeper in keepers)
        self._switches = [place.grpc for place in places]
        self._installer = Installer(
            keepers,
            admitted=lambda job, leaves: self._driver.call(lambda: self.server.on_admitted(job, now_us(), leaves)),
            refused=lambda job, reason: self._driver.call(lambda: self.server.on_refused(job, reason)),
            restarted=lambda what: self._driver.call(lambda: self.server.switch_restarted(what)),
            keeper_of=lambda leaf: self._keeper(fabric.leaf_on_host(leaf, self.settings.switch_address)),
            leaf_refused=lambda job, reason, leaf: self._driver.call(lambda: self.server.on_refused(job, reason, leaf)),
        )

    def _keeper(self, place: SwitchPlace) -> Keeper:
        return Keeper(place, place.program(self.settings.lanes, self.settings.contribution_bits))

    def run(self) -> None:
        """Serves until `stop` is called from another thread or a signal handler."""
        try:
            self._driver.run()
            for job in self.server.jobs.values():
                if job.state is State.RUNNING:
                    self.over(job)
        finally:
            if self._installer is not None:
                self._installer.close()

    def start(self) -> None:
        """Serves in a new thread."""
        self._driver.start("sa-atp-ps")

    def state(self) -> ServerState:
        """The jobs and ranks as they are now, from any thread. Raises: TimeoutError: the loop is stuck."""
        return door.between_turns(
            self._driver.call, lambda: of_server(self.server, self.address, self._switches, now_us())
        )

    def stop(self) -> None:
        self._driver.stop()

    def _all_are_here(self) -> bool:
        """Whether all members of all jobs are on this machine: what the switch sends them by shared memory is not lost, and
        who has missed a result all the same gets it from another rank (protocol section 5.7).
        """
        running = [job for job in self.server.jobs.values() if job.state is State.RUNNING]
        return all(
            member.address[0] == self._known_as.get(job.number, self.address)[0]
            for job in running
            for member in job.members.values()
        )

    def _submit(self, event: ServerEvent, installer: Installer) -> None:
        """Has switches install or remove a job. They are given the address from which the parameter server reaches
        `switch_address`, or, if there is none, the ranks: a rank takes packets only from the address that it connects to.
        """
        if isinstance(event, Admit):
            switch = self.settings.switch_address
            found = sources_of(self.address, event.addresses.values() if switch is None else [switch])
            if len(found) != 1:
                reason = (
                    f"the parameter server listens on {ANY}, and reaches {'the ranks' if switch is None else 'the switch'} "
                    f"from {' and '.join(ip for ip, _ in found) or 'no address'}: start it with --listen and the address "
                    "that switches shall send to"
                )
                self.server.on_refused(event, reason)
                return
            (known_as,) = found
            if known_as != self.address:
                say("sa-atp: job {}: switches know the parameter server as {}:{}".format(event.number, *known_as))
            self._known_as[event.number] = known_as
            event = replace(event, server=known_as)
        installer.submit(event)

    def _take_events(self) -> None:
        self._driver.let_gather(UNASKED_PAUSE_US if self.server.is_unasked(now_us()) else LONGEST_PAUSE_US)
        too_long = mtu.take_exceeded(self._driver.socket)
        if too_long is not None:
            self.server.path_narrowed(*too_long)
        self._driver.spare(self._all_are_here())
        while (event := self.server.next_event()) is not None:
            job = self.server.jobs.get(event.number) if isinstance(event, Retire) else None
            if job is not None and job.epoch == event.epoch:
                self.over(job)
            if self._installer is not None:
                self._submit(event, self._installer)
            elif isinstance(event, Admit):
                self.server.on_admitted(event, now_us())

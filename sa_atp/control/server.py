"""The parameter server as a process: its connection on a socket, and the switch that it controls."""

from collections.abc import Callable, Mapping

from sa_atp import artefacts
from sa_atp.control.admission import Attachment, Installer
from sa_atp.control.client import P4RuntimeClient
from sa_atp.control.errors import ControlError
from sa_atp.net.clock import now_us
from sa_atp.net.driver import Driver
from sa_atp.net.udp import UdpSocket
from sa_atp.transport.server import Admit, ParameterServer, ServerSettings
from sa_atp.wire.datagrams import Address


class ServerProcess:
    def __init__(self, settings: ServerSettings, listen: Address, random_bits: Callable[[int], int]) -> None:
        """Raises: UserError: the address cannot be had."""
        self.settings = settings
        self.server = ParameterServer(settings, random_bits)
        socket = UdpSocket(listen)
        self.address = socket.address
        self._driver = Driver(self.server, socket, self._take_events)
        self._installer: Installer | None = None
        self._client: P4RuntimeClient | None = None

    def use_switch(self, grpc: str, device_id: int, *, default_port: int, ports: Mapping[str, int]) -> None:
        """Connects to a switch that aggregates. Raises: ControlError: it does not answer, or runs another program."""
        self._client = P4RuntimeClient(grpc, device_id).open()
        program = artefacts.program(self.settings.lanes)
        try:
            current = self._client.get_pipeline().device_config == program.device_config()
        except ControlError:
            current = False  # it has no pipeline yet
        if not current:
            self._client.push_pipeline(program.p4info(), program.device_config())
        self._installer = Installer(
            self._client,
            Attachment(server=self.address, default_port=default_port, ports=ports),
            admitted=lambda job: self._driver.call(lambda: self.server.admitted(job, now_us())),
            refused=lambda job, reason: self._driver.call(lambda: self.server.refused(job, reason)),
        )

    def run(self) -> None:
        """Until `stop` is called from another thread or a signal handler."""
        try:
            self._driver.run()
        finally:
            if self._installer is not None:
                self._installer.close()
            if self._client is not None:
                self._client.close()

    def start(self) -> None:
        """Runs in a thread of its own."""
        self._driver.start("sa-atp-ps")

    def stop(self) -> None:
        self._driver.stop()

    def _take_events(self) -> None:
        while (event := self.server.next_event()) is not None:
            if self._installer is not None:
                self._installer.submit(event)
            elif isinstance(event, Admit):
                self.server.admitted(event.job.number, now_us())

"""gRPC towards a switch: the channel, the stream, and failures as exceptions of one line.

With the server of the embedded target, the only module that knows gRPC.
"""

import queue
import threading
from typing import Any

from sa_atp.switches.control.errors import (
    ControlError,
    NoPipeline,
    NotPrimary,
    NotSupported,
    Unreachable,
    WrongDevice,
)
from sa_atp.switches.p4runtime.calls import Stub
from sa_atp.switches.p4runtime.errors import Code
from sa_atp.switches.p4runtime.messages import p4runtime_pb2, status_pb2
from sa_atp.switches.p4runtime.rpc import grpc

MOST_MESSAGE_BYTES = 256 << 20  # compiled programs are large
_Code = grpc.StatusCode


class NotFound(ControlError):
    """One entity that was asked for does not exist."""


class RefusedWrite(ControlError):
    """Some updates of a write were refused. details: for each its index, canonical code and reason."""

    def __init__(self, message: str, details: list[tuple[int, int, str]]) -> None:
        super().__init__(message)
        self.details = details


class Connection:
    """A channel to one server, about one device."""

    def __init__(self, address: str, device_id: int, timeout_s: float) -> None:
        self.where = f"switch {device_id} at {address}"
        self.timeout_s = timeout_s
        self._address = address
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.enable_http_proxy", 0),  # a switch is never behind the proxy of a user's browser
                ("grpc.initial_reconnect_backoff_ms", 100),  # a switch that is just starting
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
            ],
        )
        self._stub = Stub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def wait_for_server(self) -> None:
        """Raises: Unreachable: nobody answered in `timeout_s`."""
        try:
            # any answer will do, so also that of a server which is too old to have this call
            self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=self.timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is not _Code.UNIMPLEMENTED:
                raise Unreachable(
                    f"no P4Runtime server answers at {self._address} (waited {self.timeout_s:g} s)"
                ) from None

    def call(self, rpc: str, request: Any, doing: str, timeout_s: float | None = None) -> Any:
        """The answer of an RPC; `doing` says in messages what it was for. Raises: ControlError."""
        try:
            return getattr(self._stub, rpc)(request, timeout=self.timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise self.failure(error, doing) from None

    def entities(self, request: Any, doing: str) -> list[Any]:
        """All entities that a read returns. Raises: ControlError."""
        try:
            return [entity for part in self._stub.Read(request, timeout=self.timeout_s) for entity in part.entities]
        except grpc.RpcError as error:
            raise self.failure(error, doing) from None

    def stream(self) -> "Stream":
        """Opens the stream channel."""
        return Stream(self, self._stub)

    def failure(self, error: Any, doing: str) -> ControlError:
        """The exception for a failed RPC."""
        code, reason = error.code(), error.details() or error.code().name
        message = f"{self.where}: {doing}: {reason}"
        if code is _Code.UNKNOWN and (details := _write_details(error)):
            return RefusedWrite(message, details)
        if code is _Code.UNKNOWN and "assign device" in reason:  # BMv2's word for another device id than its own
            return WrongDevice(f"{message}; is that the device id that it was started with?")
        if code is _Code.DEADLINE_EXCEEDED:
            return Unreachable(f"{self.where}: {doing}: no answer in time")
        if code in (_Code.UNAVAILABLE, _Code.CANCELLED):
            return Unreachable(f"{self.where}: {doing}: the server is gone ({reason})")
        if code is _Code.UNIMPLEMENTED:
            return NotSupported(message)
        if code is _Code.PERMISSION_DENIED:
            return NotPrimary(message)
        if code is _Code.NOT_FOUND:
            return WrongDevice(message) if "device" in reason else NotFound(message)
        if code is _Code.FAILED_PRECONDITION and "forwarding pipeline" in reason.lower():
            return NoPipeline(f"{self.where}: no program has been pushed to this switch")
        if code is _Code.INVALID_ARGUMENT and doing == "arbitration":
            # stratum_bfrt calls devices nodes; BMv2 and the embedded target mean the election id
            return WrongDevice(message) if "node" in reason.lower() else NotPrimary(message)
        return ControlError(f"{self.where}: {doing}: {code.name}: {reason}")


class Stream:
    """The stream channel: what the server sends is sorted into queues by a thread of its own.

    In each queue the last item is the exception that ended the stream, where one did.
    """

    def __init__(self, connection: Connection, stub: Any) -> None:
        self.primary = threading.Event()  # set while the server calls this client primary
        self._connection = connection
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._arrived: dict[str, queue.SimpleQueue[Any]] = {
            kind: queue.SimpleQueue() for kind in ("arbitration", "packet", "error")
        }
        self._call = stub.StreamChannel(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read, name="p4runtime-client", daemon=True)
        self._reader.start()

    def send(self, message: Any) -> None:
        self._outgoing.put(message)

    def next(self, kind: str, doing: str, timeout_s: float) -> Any:
        """The next message of a kind: "arbitration", "packet" or "error".

        Raises: Unreachable: none came in time; ControlError: the server ended the stream.
        """
        try:
            message = self._arrived[kind].get(timeout=timeout_s)
        except queue.Empty:
            raise Unreachable(f"{self._connection.where}: no {doing} in {timeout_s:g} s") from None
        if isinstance(message, grpc.RpcError):
            raise self._connection.failure(message, doing)
        return message

    def close(self, timeout_s: float) -> None:
        """Ends the stream from this side, so that the server has forgotten the client once this returns."""
        self._outgoing.put(None)
        self._reader.join(timeout_s)
        if self._reader.is_alive():
            self._call.cancel()
            self._reader.join(timeout_s)

    def _read(self) -> None:
        try:
            for message in self._call:
                kind = message.WhichOneof("update")
                if kind == "arbitration" and message.arbitration.status.code == Code.OK:
                    self.primary.set()
                elif kind == "arbitration":
                    self.primary.clear()
                if kind in self._arrived:
                    self._arrived[kind].put(getattr(message, kind))
        except grpc.RpcError as error:
            self.primary.clear()
            for arrived in self._arrived.values():
                arrived.put(error)


def _write_details(error: Any) -> list[tuple[int, int, str]]:
    """For each refused update of a write (index, canonical code, reason). (P4Runtime, section 11.3)"""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            found = []
            for i, detail in enumerate(status.details):
                outcome = p4runtime_pb2.Error()
                detail.Unpack(outcome)
                if outcome.canonical_code != Code.OK:
                    found.append((i, outcome.canonical_code, outcome.message))
            return found
    return []

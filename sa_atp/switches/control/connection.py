"""A client's gRPC: the channel, the stream channel, and failures as exceptions with one line.

Only this module and the server of the embedded target use gRPC.
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
    """A requested entity does not exist."""


class RefusedWrite(ControlError):
    """The switch refused some updates of a write. details: index, canonical code and reason of each."""

    def __init__(self, message: str, details: list[tuple[int, int, str]]) -> None:
        super().__init__(message)
        self.details = details


class GrpcConnection:
    """A gRPC channel to one server, for one device."""

    def __init__(self, address: str, device_id: int, timeout_s: float) -> None:
        self.where = f"switch {device_id} at {address}"
        self.timeout_s = timeout_s
        self._address = address
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.enable_http_proxy", 0),  # the user's web proxy does not lead to switches
                ("grpc.initial_reconnect_backoff_ms", 100),  # the switch may be starting
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
            ],
        )
        self._stub = Stub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def wait_for_server(self) -> None:
        """Waits until the server answers. Raises: Unreachable: it did not in `timeout_s`."""
        try:
            # any answer will do, also an error of a server that is too old for this call
            self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=self.timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is not _Code.UNIMPLEMENTED:
                raise Unreachable(
                    f"no P4Runtime server answers at {self._address} (waited {self.timeout_s:g} s)"
                ) from None

    def call(self, rpc: str, request: Any, doing: str, timeout_s: float | None = None) -> Any:
        """Makes an RPC. Args: doing: its purpose, for messages. Returns: the answer. Raises: ControlError."""
        try:
            return getattr(self._stub, rpc)(request, timeout=self.timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise self.failure(error, doing) from None

    def entities(self, request: Any, doing: str) -> list[Any]:
        """Makes a read. Returns: all entities of the answer. Raises: ControlError."""
        try:
            return [entity for part in self._stub.Read(request, timeout=self.timeout_s) for entity in part.entities]
        except grpc.RpcError as error:
            raise self.failure(error, doing) from None

    def stream(self) -> "StreamChannel":
        """Opens the stream channel."""
        return StreamChannel(self, self._stub)

    def failure(self, error: Any, doing: str) -> ControlError:
        """The exception for a failed RPC."""
        code, reason = error.code(), error.details() or error.code().name
        message = f"{self.where}: {doing}: {reason}"
        if code is _Code.UNKNOWN and (details := _write_details(error)):
            return RefusedWrite(message, details)
        if code is _Code.UNKNOWN and "assign device" in reason:  # BMv2's message for a device id that is not its own
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


class StreamChannel:
    """The stream channel of P4Runtime: a thread sorts the server's messages into queues.

    The last item of each queue is how the server ended the stream: an exception, or None for no error.
    """

    def __init__(self, connection: GrpcConnection, stub: Any) -> None:
        self.primary = threading.Event()  # set while this client is primary
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
        """Waits for the next message of a kind: "arbitration", "packet" or "error".

        Raises: Unreachable: none came in time; ControlError: the server ended the stream.
        """
        try:
            message = self._arrived[kind].get(timeout=timeout_s)
        except queue.Empty:
            raise Unreachable(f"{self._connection.where}: no {doing} in {timeout_s:g} s") from None
        if message is not None and not isinstance(message, grpc.RpcError):
            return message
        self._arrived[kind].put(message)  # for who asks again
        if message is None:
            raise Unreachable(f"{self._connection.where}: {doing}: the server ended the stream")
        raise self._connection.failure(message, doing)

    def close(self, timeout_s: float) -> None:
        """Ends the stream, and waits until the server has ended it, too, so that it has forgotten this client."""
        self._outgoing.put(None)
        self._reader.join(timeout_s)
        if self._reader.is_alive():
            self._call.cancel()
            self._reader.join(timeout_s)

    def _read(self) -> None:
        ended = None
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
            ended = error
        self.primary.clear()
        for arrived in self._arrived.values():
            arrived.put(ended)


def _write_details(error: Any) -> list[tuple[int, int, str]]:
    """(index, canonical code, reason) of each refused update of a write. (P4Runtime, section 11.3)"""
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

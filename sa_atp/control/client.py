"""A P4Runtime client: one connection to one switch.

    with P4RuntimeClient("127.0.0.1:9559", device_id=0) as client:
        client.push_pipeline(p4info_text, device_config)
        client.write([Update(UpdateKind.INSERT, TableEntry(table="bridge", ...))])

Every wait has a bound, and every failure is a `ControlError` whose message is one line. This module and the server of
the embedded target are the only ones that know gRPC.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import text_format
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from sa_atp.control.errors import (
    ControlError,
    NoPipeline,
    NotPrimary,
    NotSupported,
    Refused,
    RefusedError,
    Unreachable,
    WrongDevice,
)
from sa_atp.errors import UserError
from sa_atp.softswitch.p4runtime import bytestrings, codec
from sa_atp.softswitch.p4runtime.entities import Entity, MulticastGroup, Update, UpdateKind
from sa_atp.softswitch.p4runtime.errors import Code, Refusal
from sa_atp.softswitch.p4runtime.schema import FieldInfo, Schema, from_p4info

MOST_MESSAGE_BYTES = 256 << 20  # compiled programs are large
UPDATES_A_WRITE = 500  # keeps a batch far below a server's default limit of 4 MiB
PUSH_TIMEOUT_S = 120.0  # a target may compile the program before it answers

_Code = grpc.StatusCode


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineConfig:
    """What a switch runs. p4info: a `p4.config.v1.P4Info`; cookie: None where the pipeline was pushed without."""

    p4info: Any
    device_config: bytes
    cookie: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PacketIn:
    """A packet from the program to its controller. metadata: by the names of the P4Info."""

    payload: bytes
    metadata: Mapping[str, int]


class P4RuntimeClient:
    """A connection, and a `Writer`. Use it as a context manager, or call `open` and `close`."""

    def __init__(
        self,
        address: str,
        device_id: int = 0,
        *,
        election_id: int = 1,
        read_only: bool = False,
        timeout_s: float = 5.0,
    ) -> None:
        """Args:
        address: HOST:PORT of the server.
        device_id: 0 is the default of BMv2 and of the embedded target.
        election_id: of all clients that are connected, the one with the largest may write.
        read_only: do not ask to be primary; `write` and `push_pipeline` fail.
        timeout_s: how long to wait for the connection, and for each answer.
        """
        if not 0 < election_id < 1 << 128:
            raise UserError(f"election id {election_id}: expected 1 to 2**128 - 1")
        self.address = address
        self.device_id = device_id
        self.election_id = election_id
        self.read_only = read_only
        self.timeout_s = timeout_s
        self._schema: Schema | None = None
        self._channel: Any = None
        self._stub: Any = None
        self._stream: _Stream | None = None

    # --- connection ---------------------------------------------------------------------------------------------------

    def open(self) -> "P4RuntimeClient":
        """Connects, and becomes primary unless read-only.

        Raises: Unreachable, WrongDevice, NotPrimary.
        """
        self._channel = grpc.insecure_channel(
            self.address,
            options=[
                ("grpc.enable_http_proxy", 0),  # a switch is never behind the proxy of a user's browser
                ("grpc.initial_reconnect_backoff_ms", 100),  # a switch that is just starting
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
            ],
        )
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        try:
            self._wait_for_server()
            if not self.read_only:
                self._arbitrate()
        except BaseException:
            self.close()
            raise
        return self

    def _wait_for_server(self) -> None:
        try:
            # any answer will do, so also that of a server which is too old to have this call
            self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=self.timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is not _Code.UNIMPLEMENTED:
                raise Unreachable(
                    f"no P4Runtime server answers at {self.address} (waited {self.timeout_s:g} s)"
                ) from None

    def close(self) -> None:
        """Ends the connection; nothing that the switch holds changes."""
        if self._stream is not None:
            self._stream.close(self.timeout_s)
            self._stream = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def __enter__(self) -> "P4RuntimeClient":
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _arbitrate(self) -> None:
        self._stream = _Stream(self._stub)
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        _set_election_id(request.arbitration, self.election_id)
        self._stream.send(request)
        try:
            answer = self._stream.arbitrations.get(timeout=self.timeout_s)
        except queue.Empty:
            raise Unreachable(f"{self._where()}: no answer to the arbitration in {self.timeout_s:g} s") from None
        if isinstance(answer, grpc.RpcError):
            raise self._failure(answer, "arbitration")
        if answer.status.code != Code.OK:
            raise NotPrimary(
                f"{self._where()}: election id {self.election_id} is not primary, "
                f"the primary's is {_number(answer.election_id)}"
            )

    @property
    def is_primary(self) -> bool:
        """False once another client with a larger election id came, and while not connected."""
        return self._stream is not None and self._stream.primary.is_set()

    def wait_until_primary(self, timeout_s: float | None = None) -> None:
        """Waits for clients with larger election ids to leave. Raises: NotPrimary: one is still there."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        if not self._streaming().primary.wait(wait_s):
            raise NotPrimary(f"{self._where()}: election id {self.election_id} is not primary after {wait_s:g} s")

    def api_version(self) -> str:
        """The version of P4Runtime that the server speaks."""
        answer = self._call(self._connected().Capabilities, p4runtime_pb2.CapabilitiesRequest(), "capabilities")
        return str(answer.p4runtime_api_version)

    # --- pipeline -----------------------------------------------------------------------------------------------------

    def push_pipeline(
        self,
        p4info: Any,
        device_config: bytes,
        *,
        action: str = "VERIFY_AND_COMMIT",
        cookie: int | None = None,
        timeout_s: float = PUSH_TIMEOUT_S,
    ) -> None:
        """Gives the switch a program.

        Args:
            p4info: a `p4.config.v1.P4Info`, or its text form.
            device_config: what the target runs; BMv2 JSON for BMv2 and the embedded target.
            action: VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT, COMMIT or RECONCILE_AND_COMMIT.
            cookie: a number that `get_pipeline` returns.
        """
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device_id)
        if action not in request.Action.keys()[1:]:
            raise UserError(f"pipeline action {action}: expected one of {', '.join(request.Action.keys()[1:])}")
        request.action = request.Action.Value(action)
        _set_election_id(request, self.election_id)
        if action != "COMMIT":
            request.config.p4info.CopyFrom(parse_p4info(p4info) if isinstance(p4info, str) else p4info)
            request.config.p4_device_config = device_config
            if cookie is not None:
                request.config.cookie.cookie = cookie
        self._schema = None
        self._call(self._connected().SetForwardingPipelineConfig, request, "pushing the pipeline", timeout_s)

    def get_pipeline(self) -> PipelineConfig:
        """Raises: NoPipeline: nothing has been pushed yet."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
        config = self._call(self._connected().GetForwardingPipelineConfig, request, "reading the pipeline").config
        if not config.HasField("p4info"):  # what BMv2 answers before the first push
            raise NoPipeline(f"{self._where()}: no program has been pushed to this switch")
        return PipelineConfig(
            p4info=config.p4info,
            device_config=config.p4_device_config,
            cookie=config.cookie.cookie if config.HasField("cookie") else None,
        )

    @property
    def schema(self) -> Schema:
        """What the switch's program offers; asked for once after each push.

        Raises: NoPipeline: nothing has been pushed yet.
        """
        if self._schema is None:
            request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
            request.response_type = request.P4INFO_AND_COOKIE
            config = self._call(self._connected().GetForwardingPipelineConfig, request, "reading the P4Info").config
            if not config.HasField("p4info"):
                raise NoPipeline(f"{self._where()}: no program has been pushed to this switch")
            self._schema = from_p4info(config.p4info)
        return self._schema

    # --- entities -----------------------------------------------------------------------------------------------------

    def write(self, updates: Iterable[Update]) -> None:
        """Carries out updates in order, in batches; one that is refused does not stop the others.

        Raises:
            RefusedError: at least one was refused: `refused` says which and why.
            NotPrimary, NotSupported, Unreachable, NoPipeline.
        """
        updates = list(updates)
        refused: list[Refused] = []
        for first in range(0, len(updates), UPDATES_A_WRITE):
            batch = updates[first : first + UPDATES_A_WRITE]
            request = p4runtime_pb2.WriteRequest(device_id=self.device_id)
            _set_election_id(request, self.election_id)
            sent: list[int] = []
            for i, update in enumerate(batch, start=first):
                try:
                    request.updates.append(codec.encode_update(update, self.schema))
                    sent.append(i)
                except Refusal as refusal:  # the program has no such table, field or action
                    refused.append(_refused(i, update, refusal.code, str(refusal)))
            try:
                self._call(self._connected().Write, request, "writing")
            except _RefusedWrite as error:
                refused += [_refused(sent[i], updates[sent[i]], code, reason) for i, code, reason in error.details]
        if refused and all(each.code == Code.UNIMPLEMENTED.name for each in refused):
            raise NotSupported(f"{self._where()}: {refused[0]}")
        if refused:
            raise RefusedError(self._where(), refused, len(updates))

    def insert(self, *entities: Entity) -> None:
        self.write(Update(UpdateKind.INSERT, entity) for entity in entities)

    def modify(self, *entities: Entity) -> None:
        self.write(Update(UpdateKind.MODIFY, entity) for entity in entities)

    def delete(self, *entities: Entity) -> None:
        self.write(Update(UpdateKind.DELETE, entity) for entity in entities)

    def read(self, *queries: Entity) -> list[Entity]:
        """What is there, for entities whose defaults ask for everything; all queries in one request.

        Raises: NotSupported, RefusedError, Unreachable, NoPipeline.
        """
        groups = [q for q in queries if isinstance(q, MulticastGroup) and q.group]
        others = [q for q in queries if q not in groups]
        found = self._read(others) if others else []
        for group in groups:  # one that does not exist is an error to servers, and would spoil the whole request
            try:
                found += self._read([group])
            except _NotFound:
                continue
        return found

    def _read(self, queries: Iterable[Entity]) -> list[Entity]:
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id)
        what = ", ".join(str(q) for q in queries)
        for query in queries:
            request.entities.append(self._encode(query))
        stub = self._connected()

        def collect(message: Any, timeout: float) -> list[Any]:
            return [entity for response in stub.Read(message, timeout=timeout) for entity in response.entities]

        return [codec.decode(entity, self.schema) for entity in self._call(collect, request, f"reading {what}")]

    def _encode(self, query: Entity) -> Any:
        try:
            return codec.encode(query, self.schema)
        except Refusal as refusal:
            raise RefusedError(
                self._where(),
                [Refused(index=0, update=f"READ {query}", code=refusal.code.name, reason=str(refusal))],
                1,
            ) from None

    # --- packets ------------------------------------------------------------------------------------------------------

    def packet_out(self, payload: bytes, **metadata: int) -> None:
        """Sends a packet into the program. metadata: fields of its packet_out header, by name."""
        fields = {f.name: f for f in self.schema.packet_out}
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.payload = payload
        for name, value in metadata.items():
            if name not in fields:
                raise UserError(f"packet-out: there is no metadata {name}; it has {', '.join(fields) or 'none'}")
            request.packet.metadata.add(metadata_id=fields[name].id, value=bytestrings.encode(value))
        self._streaming().send(request)

    def packet_in(self, timeout_s: float | None = None) -> PacketIn:
        """The next packet that the program sent. Raises: Unreachable: none came in time (default: `timeout_s`)."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            message = self._streaming().packets.get(timeout=wait_s)
        except queue.Empty:
            raise Unreachable(f"{self._where()}: no packet-in in {wait_s:g} s") from None
        if isinstance(message, grpc.RpcError):
            raise self._failure(message, "packet-in")
        names: dict[int, FieldInfo] = {f.id: f for f in self.schema.packet_in}
        return PacketIn(
            payload=message.payload,
            metadata={names[m.metadata_id].name: int.from_bytes(m.value, "big") for m in message.metadata},
        )

    def stream_error(self, timeout_s: float | None = None) -> str:
        """The next complaint of the server about a packet-out."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            return str(self._streaming().errors.get(timeout=wait_s).message)
        except queue.Empty:
            raise Unreachable(f"{self._where()}: no stream error in {wait_s:g} s") from None

    # --- failures -----------------------------------------------------------------------------------------------------

    def _where(self) -> str:
        return f"switch {self.device_id} at {self.address}"

    def _connected(self) -> Any:
        if self._channel is None:
            raise ControlError(f"{self._where()}: not connected: use the client in a `with` statement")
        return self._stub

    def _streaming(self) -> "_Stream":
        self._connected()
        if self._stream is None:
            raise NotPrimary(f"{self._where()}: a read-only client has no packets")
        return self._stream

    def _call(self, method: Callable[..., Any], request: Any, doing: str, timeout_s: float | None = None) -> Any:
        try:
            return method(request, timeout=self.timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise self._failure(error, doing) from None

    def _failure(self, error: Any, doing: str) -> ControlError:
        """The exception for a failed RPC."""
        code, reason = error.code(), error.details() or error.code().name
        message = f"{self._where()}: {doing}: {reason}"
        if code is _Code.UNKNOWN and (details := _write_details(error)):
            return _RefusedWrite(message, details)
        if code is _Code.UNKNOWN and "assign device" in reason:  # BMv2's word for another device id than its own
            return WrongDevice(f"{message}; is {self.device_id} the device id that it was started with?")
        if code is _Code.DEADLINE_EXCEEDED:
            return Unreachable(f"{self._where()}: {doing}: no answer in time")
        if code in (_Code.UNAVAILABLE, _Code.CANCELLED):
            return Unreachable(f"{self._where()}: {doing}: the server is gone ({reason})")
        if code is _Code.UNIMPLEMENTED:
            return NotSupported(message)
        if code is _Code.PERMISSION_DENIED:
            return NotPrimary(message)
        if code is _Code.NOT_FOUND:
            return WrongDevice(message) if "device" in reason else _NotFound(message)
        if code is _Code.FAILED_PRECONDITION and "no forwarding pipeline" in reason.lower():
            return NoPipeline(f"{self._where()}: no program has been pushed to this switch")
        if code is _Code.INVALID_ARGUMENT and doing == "arbitration":
            return NotPrimary(f"{self._where()}: election id {self.election_id}: {reason}")
        return ControlError(f"{self._where()}: {doing}: {code.name}: {reason}")


class _NotFound(ControlError):
    """One entity that was asked for does not exist."""


class _RefusedWrite(ControlError):
    def __init__(self, message: str, details: list[tuple[int, int, str]]) -> None:
        super().__init__(message)
        self.details = details  # (index, canonical code, reason)


class _Stream:
    """The stream channel: what the server sends is sorted into queues by a thread of its own."""

    def __init__(self, stub: Any) -> None:
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.arbitrations: queue.SimpleQueue[Any] = queue.SimpleQueue()  # messages; at the end, the RpcError
        self.packets: queue.SimpleQueue[Any] = queue.SimpleQueue()  # the same
        self.errors: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.primary = threading.Event()
        self._call = stub.StreamChannel(self._requests())
        self._reader = threading.Thread(target=self._read, name="p4runtime-client", daemon=True)
        self._reader.start()

    def send(self, message: Any) -> None:
        self._outgoing.put(message)

    def close(self, timeout_s: float) -> None:
        """Ends the stream from this side, so that the server has forgotten the client once this returns."""
        self._outgoing.put(None)
        self._reader.join(timeout_s)
        if self._reader.is_alive():
            self._call.cancel()
            self._reader.join(timeout_s)

    def _requests(self) -> Iterator[Any]:
        while (message := self._outgoing.get()) is not None:
            yield message

    def _read(self) -> None:
        try:
            for message in self._call:
                kind = message.WhichOneof("update")
                if kind == "arbitration":
                    if message.arbitration.status.code == Code.OK:
                        self.primary.set()
                    else:
                        self.primary.clear()
                    self.arbitrations.put(message.arbitration)
                elif kind == "packet":
                    self.packets.put(message.packet)
                elif kind == "error":
                    self.errors.put(message.error)
        except grpc.RpcError as error:
            self.primary.clear()
            self.arbitrations.put(error)
            self.packets.put(error)


def parse_p4info(text: str) -> Any:
    """A `p4.config.v1.P4Info` from its text form. Raises: UserError: not a P4Info, with the line."""
    try:
        return text_format.Parse(text, p4info_pb2.P4Info(), allow_unknown_field=True)
    except text_format.ParseError as error:
        raise UserError(f"not a P4Info in text form: {error}") from None


def _set_election_id(message: Any, election_id: int) -> None:
    message.election_id.high, message.election_id.low = election_id >> 64, election_id & ((1 << 64) - 1)


def _number(election_id: Any) -> int:
    return int(election_id.high) << 64 | int(election_id.low)


def _refused(index: int, update: Update, code: int, reason: str) -> Refused:
    name = Code(code).name if code in Code.__members__.values() else f"code {code}"
    return Refused(index=index, update=str(update), code=name, reason=reason)


def _write_details(error: Any) -> list[tuple[int, int, str]]:
    """For each refused update of a write (index, canonical code, reason). (section 11.3)"""
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

"""A P4Runtime client: one connection to one switch.

    with P4RuntimeClient("127.0.0.1:9559", device_id=0) as client:
        client.push_pipeline(p4info_text, device_config)
        client.insert(TableEntry(table="bridge", match={"ip": Lpm(0x0A000000, 24)}, action="to_port", params={"port": 1}))

Every wait has a bound, and every failure is a `ControlError` whose message is one line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from google.protobuf import text_format

from sa_atp.basics.errors import UserError
from sa_atp.switches.control.connection import GrpcConnection, NotFound, RefusedWrite, StreamChannel
from sa_atp.switches.control.errors import (
    ControlError,
    NoPipeline,
    NotPrimary,
    NotSupported,
    RefusedUpdate,
    UpdateRefusedError,
)
from sa_atp.switches.p4runtime import bytestrings, codec
from sa_atp.switches.p4runtime.entities import Entity, MulticastGroup, RegisterEntry, Update, UpdateKind
from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.messages import p4info_pb2, p4runtime_pb2
from sa_atp.switches.p4runtime.rpc import check_address
from sa_atp.switches.p4runtime.schema import Schema, find, from_p4info

UPDATES_A_WRITE = 500  # keeps a write far below gRPC's default limit of 4 MiB
PUSH_TIMEOUT_S = 120.0  # a target may compile the program before it answers


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineConfig:
    """The pipeline of a switch. p4info: a `p4.config.v1.P4Info`; cookie: None if it was pushed without one."""

    p4info: Any
    device_config: bytes
    cookie: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PacketIn:
    """A packet from the program to its controller. metadata: values by their names in the P4Info."""

    payload: bytes
    metadata: Mapping[str, int]


class P4RuntimeClient:
    """A client of one switch, which is a `Writer`. Use it as a context manager, or call `open` and `close`."""

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
        election_id: the connected client with the largest one may write.
        read_only: whether not to ask to be primary; `write` and `push_pipeline` then fail.
        timeout_s: how long to wait for the connection, and for each answer.

        Raises: UserError: an argument is out of range.
        """
        if not 0 < election_id < 1 << 128:
            raise UserError(f"election id {election_id}: expected 1 to 2**128 - 1")
        if not 0 <= device_id < 1 << 64:
            raise UserError(f"device id {device_id}: expected 0 to 2**64 - 1")
        if not 0 < timeout_s < 1e9:
            raise UserError(f"timeout {timeout_s:g}: expected a positive number of seconds")
        self.address = check_address(address)
        self.device_id = device_id
        self.election_id = election_id
        self.read_only = read_only
        self.timeout_s = timeout_s
        self._where = f"switch {device_id} at {address}"
        self._schema: Schema | None = None
        self._connection: GrpcConnection | None = None
        self._stream: StreamChannel | None = None

    # --- connection ---------------------------------------------------------------------------------------------------

    def open(self) -> "P4RuntimeClient":
        """Connects, and becomes primary unless read-only.

        Raises: Unreachable, WrongDevice, NotPrimary.
        """
        self._connection = GrpcConnection(self.address, self.device_id, self.timeout_s)
        try:
            self._connection.wait_for_server()
            if not self.read_only:
                self._arbitrate(self._connection)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends the connection; the switch keeps its state."""
        if self._stream is not None:
            self._stream.close(self.timeout_s)
            self._stream = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> "P4RuntimeClient":
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _arbitrate(self, connection: GrpcConnection) -> None:
        self._stream = connection.stream()
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        _set_election_id(request.arbitration, self.election_id)
        self._stream.send(request)
        try:
            answer = self._stream.next("arbitration", "arbitration", self.timeout_s)
        except NotPrimary as error:  # another client has this id
            raise NotPrimary(f"{error} (this client's election id is {self.election_id})") from None
        if answer.status.code != Code.OK:
            raise NotPrimary(
                f"{self._where}: election id {self.election_id} is not primary, "
                f"the primary's is {answer.election_id.high << 64 | answer.election_id.low}"
            )

    @property
    def is_primary(self) -> bool:
        """Whether this client is primary: False after a client with a larger election id came, or while not connected."""
        return self._stream is not None and self._stream.primary.is_set()

    def wait_until_primary(self, timeout_s: float | None = None) -> None:
        """Waits for clients with larger election ids to leave. Raises: NotPrimary: one is still there."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        if not self._streaming().primary.wait(wait_s):
            raise NotPrimary(f"{self._where}: election id {self.election_id} is not primary after {wait_s:g} s")

    def api_version(self) -> str:
        """The server's version of P4Runtime."""
        answer = self._connected().call("Capabilities", p4runtime_pb2.CapabilitiesRequest(), "capabilities")
        return str(answer.p4runtime_api_version)

    def _connected(self) -> GrpcConnection:
        if self._connection is None:
            raise ControlError(f"{self._where}: not connected: use the client in a `with` statement")
        return self._connection

    def _streaming(self) -> StreamChannel:
        self._connected()
        if self._stream is None:
            raise NotPrimary(f"{self._where}: a read-only client has no packets and is never primary")
        return self._stream

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
        """Pushes a program to the switch.

        Args:
            p4info: a `p4.config.v1.P4Info`, or its text form.
            device_config: the compiled program; BMv2 JSON for BMv2 and the embedded target.
            action: VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT, COMMIT or RECONCILE_AND_COMMIT.
            cookie: a number that `get_pipeline` returns.

        Raises: ControlError: the switch refuses the program.
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
        self._connected().call("SetForwardingPipelineConfig", request, "pushing the pipeline", timeout_s)

    def get_pipeline(self) -> PipelineConfig:
        """Reads the pipeline. Raises: NoPipeline: nothing has been pushed yet."""
        config = self._get_pipeline("ALL")
        return PipelineConfig(
            p4info=config.p4info,
            device_config=config.p4_device_config,
            cookie=config.cookie.cookie if config.HasField("cookie") else None,
        )

    def cookie(self) -> int | None:
        """Reads the cookie of the running program; None if it has none, or there is no program."""
        try:
            config = self._get_pipeline("COOKIE_ONLY")
        except NoPipeline:
            return None
        return config.cookie.cookie if config.HasField("cookie") else None

    @property
    def schema(self) -> Schema:
        """The schema of the switch's program; read once after each push.

        Raises: NoPipeline: nothing has been pushed yet.
        """
        if self._schema is None:
            self._schema = from_p4info(self._get_pipeline("P4INFO_AND_COOKIE").p4info)
        return self._schema

    def _get_pipeline(self, what: str) -> Any:
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.response_type = request.ResponseType.Value(what)
        config = self._connected().call("GetForwardingPipelineConfig", request, "reading the pipeline").config
        if what != "COOKIE_ONLY" and not config.HasField("p4info"):  # the answer of some servers before the first push
            raise NoPipeline(f"{self._where}: no program has been pushed to this switch")
        return config

    # --- entities -----------------------------------------------------------------------------------------------------

    def write(self, updates: Iterable[Update]) -> None:
        """Carries out updates in order, in batches; a refused update does not stop the others.

        Raises:
            UpdateRefusedError: at least one was refused: `refused` lists them with reasons.
            NotPrimary, NotSupported, Unreachable, NoPipeline.
        """
        updates = list(updates)
        refused: list[RefusedUpdate] = []
        for first in range(0, len(updates), UPDATES_A_WRITE):
            request = p4runtime_pb2.WriteRequest(device_id=self.device_id)
            _set_election_id(request, self.election_id)
            sent: list[int] = []
            for i, update in enumerate(updates[first : first + UPDATES_A_WRITE], start=first):
                try:
                    request.updates.append(codec.encode_update(update, self.schema))
                    sent.append(i)
                except Refusal as refusal:  # the program has no such table, field or action
                    refused.append(_refused(i, update, refusal.code, str(refusal)))
            try:
                self._connected().call("Write", request, "writing")
            except RefusedWrite as error:
                refused += [_refused(sent[i], updates[sent[i]], code, reason) for i, code, reason in error.details]
        if refused and all(each.code == Code.UNIMPLEMENTED.name for each in refused):
            raise NotSupported(f"{self._where}: {refused[0]}")
        if refused:
            raise UpdateRefusedError(self._where, sorted(refused, key=lambda each: each.index), len(updates))

    def insert(self, *entities: Entity) -> None:
        self.write(Update(UpdateKind.INSERT, entity) for entity in entities)

    def modify(self, *entities: Entity) -> None:
        self.write(Update(UpdateKind.MODIFY, entity) for entity in entities)

    def delete(self, *entities: Entity) -> None:
        self.write(Update(UpdateKind.DELETE, entity) for entity in entities)

    def read(self, *queries: Entity) -> list[Entity]:
        """Reads entities; a field at its default matches everything. Entities that do not exist are left out.

        Raises: NotSupported, UpdateRefusedError, Unreachable, NoPipeline.
        """
        groups = [q for q in queries if isinstance(q, MulticastGroup) and q.group]
        others = [q for q in queries if q not in groups]
        found = self._read(others) if others else []
        for group in groups:  # one by one: a server fails the whole request for a group that does not exist
            try:
                found += self._read([group])
            except NotFound:
                continue
        return found

    def has_registers(self) -> bool:
        """Whether registers can be read: on the embedded target they can, on BMv2 they cannot."""
        numbers = [r.name for r in self.schema.registers if r.bits]  # registers of pairs are not decoded
        if not numbers:
            return False
        try:
            self.read(RegisterEntry(register=numbers[0], index=0))
        except NotSupported:
            return False
        return True

    def _read(self, queries: Sequence[Entity]) -> list[Entity]:
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id)
        for query in queries:
            try:
                request.entities.append(codec.encode(query, self.schema))
            except Refusal as refusal:
                refused = RefusedUpdate(index=0, update=f"READ {query}", code=refusal.code.name, reason=str(refusal))
                raise UpdateRefusedError(self._where, [refused], 1) from None
        doing = f"reading {queries[0]}" + (f" and {len(queries) - 1} more" if len(queries) > 1 else "")
        return [codec.decode(entity, self.schema) for entity in self._connected().entities(request, doing)]

    # --- packets ------------------------------------------------------------------------------------------------------

    def packet_out(self, payload: bytes, **metadata: int) -> None:
        """Sends a packet into the program. metadata: fields of its packet_out header, by name."""
        fields = {f.name: f for f in self.schema.packet_out}
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.payload = payload
        for name, value in metadata.items():
            field = find("metadata", name, fields, "packet-out")
            request.packet.metadata.add(metadata_id=field.id, value=bytestrings.encode(value))
        self._streaming().send(request)

    def packet_in(self, timeout_s: float | None = None) -> PacketIn:
        """Waits for the next packet from the program.

        Raises: Unreachable: none came in time (default: `timeout_s`); ControlError: it has metadata that the P4Info lacks.
        """
        message = self._streaming().next("packet", "packet-in", self.timeout_s if timeout_s is None else timeout_s)
        names = {f.id: f.name for f in self.schema.packet_in}
        unknown = [m.metadata_id for m in message.metadata if m.metadata_id not in names]
        if unknown:
            known = ", ".join(f"{number} ({name})" for number, name in names.items()) or "none"
            raise ControlError(
                f"{self._where}: packet-in: metadata {unknown[0]} is not in the P4Info, which has {known}"
            )
        return PacketIn(
            payload=message.payload,
            metadata={names[m.metadata_id]: int.from_bytes(m.value, "big") for m in message.metadata},
        )

    def stream_error(self, timeout_s: float | None = None) -> str:
        """Waits for the server's next error about a packet-out. Raises: Unreachable: none came in time."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        return str(self._streaming().next("error", "stream error", wait_s).message)


def parse_p4info(text: str) -> Any:
    """Parses a `p4.config.v1.P4Info` in text form. Raises: UserError: it is none; the message has the line."""
    try:
        return text_format.Parse(text, p4info_pb2.P4Info(), allow_unknown_field=True)
    except text_format.ParseError as error:
        raise UserError(f"not a P4Info in text form: {error}") from None


def _set_election_id(message: Any, election_id: int) -> None:
    message.election_id.high, message.election_id.low = election_id >> 64, election_id & ((1 << 64) - 1)


def _refused(index: int, update: Update, code: int, reason: str) -> RefusedUpdate:
    name = Code(code).name if code in Code.__members__.values() else f"code {code}"
    return RefusedUpdate(index=index, update=str(update), code=name, reason=reason)

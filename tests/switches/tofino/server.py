"""A P4Runtime server like those of Tofino switches, in this process, that checks every message.

No Tofino is at hand; this is what stands in for one. Its rules are those of the servers' sources: stratum_bfrt
(p4_service.cc, bf_pipeline_utils.cc, bfrt_table_manager.cc) and PI's (device_mgr.cpp, as built for bf_switchd). It shares
no code with the project but the classes of messages: pipelines are unpacked with protobuf's own parser, entries are checked
against the P4Info that came with them.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool

from sa_atp.switches.p4runtime.calls import add_servicer
from sa_atp.switches.p4runtime.messages import any_pb2, class_maker, p4data_pb2, p4runtime_pb2, status_pb2

Kind = Literal["stratum", "pi"]
Code = grpc.StatusCode


def _bf_pipeline_config() -> Any:
    """stratum/hal/lib/barefoot/bf.proto, as far as it is used."""
    file = descriptor_pb2.FileDescriptorProto(name="bf.proto", package="stratum.hal.barefoot", syntax="proto3")
    config = file.message_type.add(name="BfPipelineConfig")
    profile = config.nested_type.add(name="Profile")
    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    profile.field.add(name="profile_name", number=1, type=field.TYPE_STRING, label=one)
    profile.field.add(name="context", number=2, type=field.TYPE_BYTES, label=one)
    profile.field.add(name="binary", number=3, type=field.TYPE_BYTES, label=one)
    profile.field.add(name="pipe_scope", number=4, type=field.TYPE_UINT32, label=many)
    config.field.add(name="p4_name", number=1, type=field.TYPE_STRING, label=one)
    config.field.add(name="bfruntime_info", number=2, type=field.TYPE_BYTES, label=one)
    config.field.add(
        name="profiles",
        number=3,
        type=field.TYPE_MESSAGE,
        label=many,
        type_name=".stratum.hal.barefoot.BfPipelineConfig.Profile",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("stratum.hal.barefoot.BfPipelineConfig")
    return class_maker(pool)(found)


BfPipelineConfig = _bf_pipeline_config()


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A pipeline that the chip has accepted. scope: pipes; None if the packing does not say."""

    name: str
    bfrt: bytes | None
    context: bytes
    binary: bytes
    scope: tuple[int, ...] | None


class Refused(Exception):
    def __init__(self, code: Any, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def unpack_stratum(data: bytes) -> Loaded:
    config = BfPipelineConfig()
    try:
        config.ParseFromString(data)
    except Exception:
        raise Refused(Code.INVALID_ARGUMENT, "Unknown format for p4_device_config") from None
    if not config.p4_name or len(config.profiles) != 1:
        raise Refused(Code.INVALID_ARGUMENT, "Unknown format for p4_device_config")
    profile = config.profiles[0]
    assert config.SerializeToString(deterministic=True) == data  # nothing that a parser would drop
    return Loaded(config.p4_name, config.bfruntime_info, profile.context, profile.binary, tuple(profile.pipe_scope))


def unpack_pi(data: bytes) -> Loaded:
    parts = []
    at = 0
    for _ in range(3):
        if at + 4 > len(data):
            raise Refused(Code.UNKNOWN, "Error when trying to assign device")
        (size,) = struct.unpack_from("<i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise Refused(Code.UNKNOWN, "Error when trying to assign device")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if at != len(data):
        raise Refused(Code.UNKNOWN, "Error when trying to assign device")
    return Loaded(parts[0].decode(), None, parts[2], parts[1], None)


@dataclasses.dataclass
class TofinoServer:
    """kind: whose rules; chip: what `target` of a configuration must be.

    before: called with the name of each RPC and its request before anything else; may raise Refused.
    """

    kind: Kind = "stratum"
    device_id: int = 1
    chip: str = "tofino"
    before: Callable[[str, Any], None] = lambda rpc, request: None

    def __post_init__(self) -> None:
        self.loaded: Loaded | None = None
        self.config: Any = None
        self.entries: dict[bytes, Any] = {}
        self.defaults: dict[int, Any] = {}
        self.groups: dict[int, Any] = {}
        self.election_id: int | None = None
        self.updates = 0
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=8),
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 256 << 20)],
        )
        add_servicer(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> TofinoServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.stop(0).wait(5)

    # --- RPCs ---------------------------------------------------------------------------------------------------------

    def _guarded(self, rpc: str, request: Any, context: Any, work: Callable[[], Any]) -> Any:
        try:
            self.before(rpc, request)
            if request.device_id != self.device_id:
                raise self._no_such_device(request.device_id)
            return work()
        except Refused as refused:
            return context.abort(refused.code, str(refused))

    def _no_such_device(self, device_id: int) -> Refused:
        if self.kind == "pi":  # PI makes devices as they are named, and fails when the chip is to be assigned
            return Refused(Code.UNKNOWN, "Error when trying to assign device")
        if device_id == 0:
            return Refused(Code.INVALID_ARGUMENT, "Invalid device ID.")
        return Refused(Code.INVALID_ARGUMENT, f"Node {device_id} is not configured or not known.")

    def Capabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version="1.3.0")

    def StreamChannel(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        context.add_callback(lambda: answers.put(None))

        def listen() -> None:
            try:
                for request in requests:
                    answers.put(self._arbitrate(request.arbitration))
            except Refused as refused:
                answers.put(refused)
            except Exception:  # the client is gone
                answers.put(None)
            answers.put(None)

        threading.Thread(target=listen, daemon=True).start()
        while (answer := answers.get()) is not None:
            if isinstance(answer, Refused):
                context.abort(answer.code, str(answer))
            yield answer

    def _arbitrate(self, message: Any) -> Any:
        if self.kind == "stratum" and message.device_id != self.device_id:
            if message.device_id == 0:
                raise Refused(Code.INVALID_ARGUMENT, "Invalid node (aka device) ID.")
            raise self._no_such_device(message.device_id)
        self.election_id = message.election_id.high << 64 | message.election_id.low
        response = p4runtime_pb2.StreamMessageResponse()
        response.arbitration.CopyFrom(message)
        response.arbitration.status.code = Code.OK.value[0]
        return response

    def _primary(self, request: Any) -> None:
        if (request.election_id.high << 64 | request.election_id.low) != self.election_id:
            raise Refused(Code.PERMISSION_DENIED, "Write from non-master is not permitted.")

    def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        def work() -> Any:
            self._primary(request)
            if request.action != request.VERIFY_AND_COMMIT:
                raise Refused(Code.UNIMPLEMENTED, f"action {request.action}")
            if not request.config.HasField("p4info"):
                raise Refused(Code.INVALID_ARGUMENT, "Missing P4 info")
            unpack = unpack_stratum if self.kind == "stratum" else unpack_pi
            loaded = unpack(request.config.p4_device_config)
            self._assign(loaded)
            self.loaded, self.config = loaded, request.config
            self.entries, self.defaults, self.groups = {}, {}, {}
            return p4runtime_pb2.SetForwardingPipelineConfigResponse()

        return self._guarded("SetForwardingPipelineConfig", request, context, work)

    def _assign(self, loaded: Loaded) -> None:
        """The driver's own checks: it reads the context, and the chip reads the head of the configuration."""
        try:
            described = json.loads(loaded.context)
        except ValueError:
            raise Refused(Code.INTERNAL, "bf_pal_device_add: BF_INVALID_ARG") from None
        wanted = b"\x02target\0" + struct.pack("<i", len(self.chip) + 1) + self.chip.encode() + b"\0"
        if wanted not in loaded.binary[:512] or described.get("target") != self.chip:
            raise Refused(Code.INTERNAL, "bf_pal_device_add: BF_INVALID_ARG")
        if loaded.bfrt is not None and "tables" not in json.loads(loaded.bfrt):
            raise Refused(Code.INTERNAL, "bfRtInfoGet: BF_OBJECT_NOT_FOUND")

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        def work() -> Any:
            if self.config is None:
                raise Refused(
                    Code.FAILED_PRECONDITION,
                    "No valid forwarding pipeline config has been pushed for any node so far."
                    if self.kind == "stratum"
                    else "No forwarding pipeline config set for this device",
                )
            answer = p4runtime_pb2.GetForwardingPipelineConfigResponse()
            answer.config.cookie.CopyFrom(self.config.cookie)
            if request.response_type in (request.ALL, request.P4INFO_AND_COOKIE):
                answer.config.p4info.CopyFrom(self.config.p4info)
            if request.response_type in (request.ALL, request.DEVICE_CONFIG_AND_COOKIE) and self.kind == "stratum":
                answer.config.p4_device_config = self.config.p4_device_config
            return answer

        return self._guarded("GetForwardingPipelineConfig", request, context, work)

    def Write(self, request: Any, context: Any) -> Any:  # noqa: N802
        def work() -> Any:
            self._primary(request)
            outcomes = [self._update(update) for update in request.updates]
            if any(outcomes):
                self._fail(context, outcomes)
            return p4runtime_pb2.WriteResponse()

        return self._guarded("Write", request, context, work)

    def _update(self, update: Any) -> Refused | None:
        self.updates += 1
        try:
            kind = update.entity.WhichOneof("entity")
            if kind == "table_entry":
                self._table_entry(update.type, update.entity.table_entry)
            elif kind == "packet_replication_engine_entry":
                self._group(update.type, update.entity.packet_replication_engine_entry.multicast_group_entry)
            else:
                raise Refused(Code.UNIMPLEMENTED, f"Unsupported entity type: {kind}")
        except Refused as refused:
            return refused
        return None

    def _fail(self, context: Any, outcomes: list[Refused | None]) -> None:
        message = "One or more write operations failed."
        status = status_pb2.Status(code=Code.UNKNOWN.value[0], message=message)
        for outcome in outcomes:
            error = p4runtime_pb2.Error()
            if outcome is not None:
                error.canonical_code, error.message = outcome.code.value[0], str(outcome)
            packed = any_pb2.Any()
            packed.Pack(error)
            status.details.append(packed)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(Code.UNKNOWN, message)

    def Read(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        def work() -> Any:
            answer = p4runtime_pb2.ReadResponse()
            for entity in request.entities:
                self._read(entity, answer)
            return answer

        yield self._guarded("Read", request, context, work)

    def _read(self, entity: Any, answer: Any) -> None:
        kind = entity.WhichOneof("entity")
        if kind == "table_entry":
            for entry in self.entries.values():
                if entity.table_entry.table_id in (0, entry.table_id):
                    answer.entities.add().table_entry.CopyFrom(entry)
        elif kind == "packet_replication_engine_entry":
            wanted = entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id
            if wanted and wanted not in self.groups:
                raise Refused(Code.NOT_FOUND, f"Multicast group {wanted} does not exist")
            for number, group in self.groups.items():
                if wanted in (0, number):
                    found = answer.entities.add().packet_replication_engine_entry.multicast_group_entry
                    found.CopyFrom(group)
        elif kind == "register_entry" and self.kind == "stratum":
            register = self._described("registers", entity.register_entry.register_id)
            found = answer.entities.add().register_entry
            found.CopyFrom(entity.register_entry)
            found.data.CopyFrom(_zero(register.type_spec, self.config.p4info.type_info))
        else:
            raise Refused(Code.UNIMPLEMENTED, f"Unsupported entity type: {kind}")

    # --- entries against the P4Info -----------------------------------------------------------------------------------

    def _described(self, what: str, number: int) -> Any:
        if self.config is None:
            raise Refused(Code.FAILED_PRECONDITION, "No forwarding pipeline config set for this device")
        for item in getattr(self.config.p4info, what):
            if item.preamble.id == number:
                return item
        raise Refused(Code.NOT_FOUND, f"there is none of the {what} with id {number}")

    def _table_entry(self, kind: int, entry: Any) -> None:
        table = self._described("tables", entry.table_id)
        if entry.is_default_action:
            if kind != p4runtime_pb2.Update.MODIFY or entry.match or entry.priority:
                raise Refused(Code.INVALID_ARGUMENT, "The table default entry can only be modified.")
            self._action(table, entry.action, as_default=True)
            self.defaults[entry.table_id] = entry
            return
        if table.is_const_table:
            raise Refused(Code.PERMISSION_DENIED, f"{table.preamble.name}: its entries are constant")
        key = self._key(table, entry)
        if kind == p4runtime_pb2.Update.DELETE:
            if self.entries.pop(key, None) is None:
                raise Refused(Code.NOT_FOUND, "BF_OBJECT_NOT_FOUND")
            return
        if (kind == p4runtime_pb2.Update.INSERT) == (key in self.entries):
            raise Refused(
                *((Code.ALREADY_EXISTS, "BF_ALREADY_EXISTS") if key in self.entries else (Code.NOT_FOUND, ""))
            )
        if sum(e.table_id == entry.table_id for e in self.entries.values()) >= table.size:
            raise Refused(Code.RESOURCE_EXHAUSTED, "BF_NO_SPACE")
        self._action(table, entry.action, as_default=False)
        self.entries[key] = entry

    def _key(self, table: Any, entry: Any) -> bytes:
        fields = {f.id: f for f in table.match_fields}
        if len({m.field_id for m in entry.match}) != len(entry.match):
            raise Refused(Code.INVALID_ARGUMENT, "a match field is given twice")
        for match in entry.match:
            if match.field_id not in fields:
                raise Refused(Code.INVALID_ARGUMENT, f"no match field {match.field_id}")
            field = fields[match.field_id]
            kind = match.WhichOneof("field_match_type")
            if kind != field.MatchType.Name(field.match_type).lower():
                raise Refused(Code.INVALID_ARGUMENT, f"{field.name} does not match by {kind}")
            value = getattr(match, kind)
            for name in ("value", "mask", "low", "high"):
                if any(f.name == name for f in value.DESCRIPTOR.fields):
                    _canonical(getattr(value, name), field.bitwidth)
            if kind == "ternary" and not any(value.mask):
                raise Refused(Code.INVALID_ARGUMENT, "a mask of zeros must be left out")
            if kind == "lpm" and not 0 < value.prefix_len <= field.bitwidth:
                raise Refused(Code.INVALID_ARGUMENT, f"prefix of {value.prefix_len} bits")
        for field in fields.values():
            exact = field.match_type == field.EXACT
            if exact and all(m.field_id != field.id for m in entry.match):
                raise Refused(Code.INVALID_ARGUMENT, f"{field.name} is missing")
        needs_priority = any(f.match_type in (f.TERNARY, f.RANGE, f.OPTIONAL) for f in fields.values())
        if needs_priority != (entry.priority > 0):
            raise Refused(Code.INVALID_ARGUMENT, "Zero priority for ternary/range/optional match.")
        ordered = sorted(m.SerializeToString(deterministic=True) for m in entry.match)
        return struct.pack("<Ii", entry.table_id, entry.priority) + b"".join(ordered)

    def _action(self, table: Any, chosen: Any, *, as_default: bool) -> None:
        if chosen.WhichOneof("type") != "action":
            raise Refused(Code.INVALID_ARGUMENT, "no action")
        refs = {r.id: r for r in table.action_refs}
        ref = refs.get(chosen.action.action_id)
        if ref is None or ref.scope == (ref.TABLE_ONLY if as_default else ref.DEFAULT_ONLY):
            raise Refused(Code.INVALID_ARGUMENT, f"{table.preamble.name} has no action {chosen.action.action_id}")
        if as_default and table.const_default_action_id:
            raise Refused(Code.PERMISSION_DENIED, f"{table.preamble.name}: its default action is constant")
        params = {p.id: p for p in self._described("actions", chosen.action.action_id).params}
        if sorted(p.param_id for p in chosen.action.params) != sorted(params):
            raise Refused(Code.INVALID_ARGUMENT, "the action has other parameters")
        for param in chosen.action.params:
            _canonical(param.value, params[param.param_id].bitwidth)

    def _group(self, kind: int, group: Any) -> None:
        number = group.multicast_group_id
        if not 0 < number < 1 << 16:
            raise Refused(Code.INVALID_ARGUMENT, f"multicast group {number}")
        if (kind == p4runtime_pb2.Update.INSERT) == (number in self.groups):
            raise Refused(Code.ALREADY_EXISTS if number in self.groups else Code.NOT_FOUND, f"multicast group {number}")
        if kind == p4runtime_pb2.Update.DELETE:
            del self.groups[number]
            return
        replicas = [(r.egress_port, r.instance) for r in group.replicas]
        if len(set(replicas)) != len(replicas) or not all(p < 512 and 0 < i < 1 << 16 for p, i in replicas):
            raise Refused(Code.INVALID_ARGUMENT, f"multicast group {number}: replicas {replicas}")
        self.groups[number] = group


def _canonical(value: bytes, bits: int) -> None:
    """P4Runtime 8.4: no more bytes than the number needs, and no more bits than the field has."""
    if not value or (len(value) > 1 and value[0] == 0):
        raise Refused(Code.INVALID_ARGUMENT, f"{value.hex()} is not the shortest form")
    if int.from_bytes(value, "big").bit_length() > bits:
        raise Refused(Code.OUT_OF_RANGE, f"{value.hex()} has more than {bits} bits")


def _zero(spec: Any, types: Any) -> Any:
    data = p4data_pb2.P4Data()
    if spec.WhichOneof("type_spec") == "struct":
        for member in types.structs[spec.struct.name].members:
            data.struct.members.append(_zero(member.type_spec, types))
    else:
        data.bitstring = b"\0"
    return data

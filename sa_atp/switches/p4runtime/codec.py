"""Entities to P4Runtime messages and back, by a schema. Pure: no connection, no switch.

`decode` accepts only the canonical form of section 9.1.1 (a field that matches everything must be left out). `forwarding`
checks whether an entity makes sense for the program.
"""

from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from sa_atp.switches.p4runtime import bytestrings
from sa_atp.switches.p4runtime.entities import (
    KINDS,
    CounterData,
    CounterEntry,
    DirectCounterEntry,
    Entity,
    Match,
    MulticastGroup,
    RegisterEntry,
    Replica,
    TableEntry,
    Update,
    UpdateKind,
    matches_all,
)
from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.messages import p4runtime_pb2
from sa_atp.switches.p4runtime.schema import (
    CounterInfo,
    FieldInfo,
    RegisterInfo,
    Schema,
    TableInfo,
    check_kind,
    find,
    match_field,
)

_PARTS = {  # the fields of a message of each kind, as those of our class
    "exact": ("value",), "lpm": ("value", "prefix_len"), "ternary": ("value", "mask"), "range": ("low", "high"),
    "optional": ("value",),
}  # fmt: skip

# --- to messages ------------------------------------------------------------------------------------------------------


def encode(entity: Entity, schema: Schema) -> Any:
    """A `p4.v1.Entity`. Raises: Refusal: the schema lacks a name, or a match is of another kind than its field."""
    message = p4runtime_pb2.Entity()
    if isinstance(entity, TableEntry):
        message.table_entry.SetInParent()  # an entry that matches everything has no field set
        _encode_table_entry(entity, schema, message.table_entry)
    elif isinstance(entity, DirectCounterEntry):
        message.direct_counter_entry.table_entry.SetInParent()
        _encode_table_entry(entity.entry, schema, message.direct_counter_entry.table_entry)
        _encode_counts(entity.counts, message.direct_counter_entry.data)
    elif isinstance(entity, CounterEntry):
        part = message.counter_entry
        part.SetInParent()
        part.counter_id = schema.counter(entity.counter).id if entity.counter else 0
        if entity.index is not None:
            part.index.index = entity.index
        if entity.counts is not None:
            _encode_counts(entity.counts, part.data)
    elif isinstance(entity, RegisterEntry):
        message.register_entry.SetInParent()
        _encode_register(entity, schema, message.register_entry)
    else:
        group = message.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = entity.group
        for replica in sorted(entity.replicas):
            group.replicas.add(egress_port=replica.port, instance=replica.instance)
    return message


def encode_update(update: Update, schema: Schema) -> Any:
    """A `p4.v1.Update`."""
    return p4runtime_pb2.Update(type=int(update.kind), entity=encode(update.entity, schema))


def _encode_table_entry(entry: TableEntry, schema: Schema, message: Any) -> None:
    if not entry.table:
        message.table_id = 0
    else:
        table = schema.table(entry.table)
        message.table_id = table.id
        for name, match in entry.match.items():
            _encode_match(table, match_field(table, name), match, message.match)
        if entry.action:
            action = schema.table_action(table, entry.action).action
            message.action.action.action_id = action.id
            params = {p.name: p for p in action.params}
            for name, value in entry.params.items():
                param = find("parameter", name, params, f"action {action.alias}")
                message.action.action.params.add(param_id=param.id, value=_bytes(value, f"{entry}: {name}"))
    message.priority = entry.priority
    message.is_default_action = entry.is_default
    message.metadata = entry.metadata
    message.controller_metadata = entry.controller_metadata
    if entry.counts is not None:
        message.counter_data.SetInParent()
        _encode_counts(entry.counts, message.counter_data)


def _encode_match(table: TableInfo, field: FieldInfo, match: Match, messages: Any) -> None:
    where = f"table {table.alias}: {field.name}"
    check_kind(field, match, where)
    if not matches_all(match, field.bits):
        part = getattr(messages.add(field_id=field.id), field.kind)
        for name, value in zip(_PARTS[field.kind], astuple(match), strict=True):
            setattr(part, name, value if name == "prefix_len" else _bytes(value, where))


def _bytes(value: int, where: str) -> bytes:
    if value < 0:
        raise Refusal(Code.OUT_OF_RANGE, f"{where}: {value} is negative")
    return bytestrings.encode(value)


def _encode_counts(counts: CounterData | None, message: Any) -> None:
    if counts is not None:
        message.packet_count = counts.packets or 0
        message.byte_count = counts.bytes or 0


def _encode_register(entity: RegisterEntry, schema: Schema, message: Any) -> None:
    if not entity.register:
        return
    info = schema.register(entity.register)
    message.register_id = info.id
    if entity.index is not None:
        message.index.index = entity.index
    if entity.value is not None:
        message.data.bitstring = (
            bytestrings.encode_signed(entity.value) if info.signed else _bytes(entity.value, str(entity))
        )


# --- from messages ----------------------------------------------------------------------------------------------------


def decode(message: Any, schema: Schema) -> Entity:
    """An entity from a `p4.v1.Entity`; names in it are aliases.

    Raises: Refusal: UNIMPLEMENTED for kinds of entity that the project does not use; INVALID_ARGUMENT or OUT_OF_RANGE for
        values that the schema does not allow.
    """
    kind = message.WhichOneof("entity")
    if kind == "table_entry":
        return _decode_table_entry(message.table_entry, schema)
    if kind == "counter_entry":
        part = message.counter_entry
        counter = schema.counter(part.counter_id) if part.counter_id else None
        return CounterEntry(
            counter=counter.alias if counter else "",
            index=_index(part, counter.alias if counter else "counter"),
            counts=_decode_counts(part.data, counter) if part.HasField("data") else None,
        )
    if kind == "direct_counter_entry":
        part = message.direct_counter_entry
        if not part.HasField("table_entry"):
            raise Refusal(Code.INVALID_ARGUMENT, "direct counter entry: the table entry is missing")
        entry = _decode_table_entry(part.table_entry, schema)
        info = schema.table(entry.table).direct_counter if entry.table else None
        return DirectCounterEntry(
            entry=entry, counts=_decode_counts(part.data, info) if part.HasField("data") else None
        )
    if kind == "register_entry":
        return _decode_register(message.register_entry, schema)
    if kind == "packet_replication_engine_entry":
        part = message.packet_replication_engine_entry
        if part.WhichOneof("type") == "clone_session_entry":
            raise Refusal(Code.UNIMPLEMENTED, "clone sessions are not supported")
        if part.WhichOneof("type") != "multicast_group_entry":
            raise Refusal(Code.INVALID_ARGUMENT, "packet replication engine entry: it has neither group nor session")
        return _decode_group(part.multicast_group_entry)
    if kind is None:
        raise Refusal(Code.INVALID_ARGUMENT, "the entity is empty")
    raise Refusal(Code.UNIMPLEMENTED, f"{kind.removesuffix('_entry').replace('_', ' ')} entries are not supported")


def decode_update(message: Any, schema: Schema) -> Update:
    """An update from a `p4.v1.Update`."""
    if message.type not in (UpdateKind.INSERT, UpdateKind.MODIFY, UpdateKind.DELETE):
        raise Refusal(Code.INVALID_ARGUMENT, f"update type {message.type}: expected INSERT, MODIFY or DELETE")
    return Update(UpdateKind(message.type), decode(message.entity, schema))


def _decode_table_entry(message: Any, schema: Schema) -> TableEntry:
    if not message.table_id:
        return TableEntry(
            priority=message.priority,
            is_default=message.is_default_action,
            metadata=message.metadata,
            controller_metadata=message.controller_metadata,
            counts=CounterData() if message.HasField("counter_data") else None,
        )
    table = schema.table(message.table_id)
    action, params = "", dict[str, int]()
    if message.HasField("action"):
        action, params = _decode_action(message.action, table, schema)
    _refuse_ageing(message, table)
    return TableEntry(
        table=table.alias,
        match=_decode_match(message.match, table),
        action=action,
        params=params,
        priority=message.priority,
        is_default=message.is_default_action,
        metadata=message.metadata,
        controller_metadata=message.controller_metadata,
        counts=_decode_counts(message.counter_data, table.direct_counter) if message.HasField("counter_data") else None,
    )


def _refuse_ageing(message: Any, table: TableInfo) -> None:
    for set_, what in (
        (message.idle_timeout_ns != 0, "idle_timeout_ns"),
        (message.HasField("time_since_last_hit"), "time_since_last_hit"),
        (message.HasField("meter_config"), "meter_config"),
        (message.HasField("meter_counter_data"), "meter_counter_data"),
    ):
        if set_:
            raise Refusal(Code.INVALID_ARGUMENT, f"table {table.alias} does not support {what}")


def _decode_match(messages: Iterable[Any], table: TableInfo) -> dict[str, Match]:
    fields = {f.id: f for f in table.match}
    found: dict[str, Match] = {}
    for message in messages:
        field = fields.get(message.field_id)
        if field is None:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"table {table.alias}: there is no match field with id {message.field_id}; it has {sorted(fields)}",
            )
        where = f"table {table.alias}: {field.name}"
        if field.name in found:
            raise Refusal(Code.INVALID_ARGUMENT, f"{where} is given twice")
        kind = message.WhichOneof("field_match_type")
        if kind != field.kind:
            raise Refusal(Code.INVALID_ARGUMENT, f"{where} matches by {field.kind}, not by {kind or 'nothing'}")
        if not field.bits:
            raise Refusal(Code.UNIMPLEMENTED, f"{where}: keys that are not plain numbers are not supported")
        found[field.name] = _decode_field(message, field, where)
    return found


def _decode_field(message: Any, field: FieldInfo, where: str) -> Match:
    if field.kind not in _PARTS:
        raise Refusal(Code.UNIMPLEMENTED, f"{where}: match kind {field.kind} is not supported")
    part = getattr(message, field.kind)
    numbers = {name: getattr(part, name) for name in _PARTS[field.kind]}
    match = KINDS[field.kind](
        *(
            number if name == "prefix_len" else bytestrings.decode(number, field.bits, where)
            for name, number in numbers.items()
        )
    )
    if matches_all(match, field.bits):
        raise Refusal(Code.INVALID_ARGUMENT, f"{where} matches everything: leave the field out instead")
    return match


def _decode_action(message: Any, table: TableInfo, schema: Schema) -> tuple[str, dict[str, int]]:
    kind = message.WhichOneof("type")
    if kind is None:
        raise Refusal(Code.INVALID_ARGUMENT, f"table {table.alias}: the action is empty")
    if kind != "action":
        raise Refusal(Code.UNIMPLEMENTED, f"table {table.alias}: {kind.replace('_', ' ')} is not supported")
    action = schema.table_action(table, message.action.action_id).action
    infos = {p.id: p for p in action.params}
    params: dict[str, int] = {}
    for param in message.action.params:
        info = infos.get(param.param_id)
        if info is None:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"action {action.alias}: there is no parameter with id {param.param_id}; it has {sorted(infos)}",
            )
        if info.name in params:
            raise Refusal(Code.INVALID_ARGUMENT, f"action {action.alias}: {info.name} is given twice")
        if not info.bits:
            raise Refusal(Code.UNIMPLEMENTED, f"action {action.alias}: {info.name} is not a plain number")
        params[info.name] = bytestrings.decode(param.value, info.bits, f"action {action.alias}: {info.name}")
    return action.alias, params


def _decode_counts(message: Any, info: CounterInfo | None) -> CounterData:
    return CounterData(
        packets=message.packet_count if info is None or info.counts_packets else None,
        bytes=message.byte_count if info is None or info.counts_bytes else None,
    )


def _index(message: Any, what: str) -> int | None:
    if not message.HasField("index"):
        return None
    if message.index.index < 0:
        raise Refusal(Code.INVALID_ARGUMENT, f"{what}: index {message.index.index} is negative")
    return int(message.index.index)


def _decode_register(message: Any, schema: Schema) -> RegisterEntry:
    if not message.register_id:
        return RegisterEntry(index=_index(message, "register"))
    info = schema.register(message.register_id)
    value = _decode_cell(message.data, info) if message.HasField("data") else None
    return RegisterEntry(register=info.alias, index=_index(message, info.alias), value=value)


def _decode_cell(data: Any, info: RegisterInfo) -> int:
    kind = data.WhichOneof("data")
    if not info.bits or kind not in ("bitstring", None):
        raise Refusal(Code.UNIMPLEMENTED, f"register {info.alias}: {kind or 'its type'} is not a plain number")
    read = bytestrings.decode_signed if info.signed else bytestrings.decode
    return read(data.bitstring, info.bits, f"register {info.alias}")


def _decode_group(message: Any) -> MulticastGroup:
    replicas = set()
    for part in message.replicas:
        kind = part.WhichOneof("port_kind")
        if kind is None:
            raise Refusal(Code.INVALID_ARGUMENT, f"multicast group {message.multicast_group_id}: a replica has no port")
        port = int.from_bytes(part.port, "big") if kind == "port" else part.egress_port
        replica = Replica(port, part.instance)
        if replica in replicas:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"multicast group {message.multicast_group_id}: port {port}, instance {part.instance} is given twice",
            )
        replicas.add(replica)
    return MulticastGroup(group=message.multicast_group_id, replicas=frozenset(replicas))

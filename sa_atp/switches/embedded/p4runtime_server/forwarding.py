"""Writes and reads entities of a pipeline for the control plane.

The rules are those of section 9; if the specification leaves a choice, BMv2's. An update is checked completely before the
state changes, so a refused one has no effect. All updates of a write become visible to packets at once.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from sa_atp.basics.arrays import Cells, Words
from sa_atp.basics.words import plural
from sa_atp.switches.embedded.p4runtime_server import keys
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.program import Entry
from sa_atp.switches.embedded.tables import TableState
from sa_atp.switches.p4runtime.entities import (
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
)
from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.schema import CounterInfo, RegisterInfo, Schema, TableInfo

_Info = TypeVar("_Info")


class Forwarding:
    """A pipeline's interface for the control plane. Thread-safe: it holds the pipeline's lock."""

    def __init__(self, pipeline: Pipeline, schema: Schema) -> None:
        """Args: schema: that of the pipeline's program; see `program_schema.differences`."""
        self.pipeline = pipeline
        self.schema = schema
        self._metadata: dict[tuple[str, keys.Key, int], tuple[bytes, int]] = {}
        self._numbers = {
            table.name: self._action_numbers(pipeline.tables[table.name], table) for table in schema.tables
        }
        self._aliases = {
            table.name: {self._numbers[table.name][use.action.name]: use.action.alias for use in table.actions}
            for table in schema.tables
        }

    def _action_numbers(self, state: TableState, table: TableInfo) -> dict[str, int]:
        """Numbers of a table's actions by name: the compiler keeps a copy of an action for each table that uses it."""
        mine = {self.pipeline.program.actions[i].name: i for i in (state.table.default_action, *state.table.action_ids)}
        return {use.action.name: mine[use.action.name] for use in table.actions}

    # --- writes -------------------------------------------------------------------------------------------------------

    def write(self, updates: Iterable[Update]) -> list[Refusal | None]:
        """Carries out updates in order. Returns: for each, None or the reason of its refusal."""
        outcomes: list[Refusal | None] = []
        with self.pipeline.lock:
            touched: set[str] = set()
            for update in updates:
                try:
                    self._write(update, touched)
                    outcomes.append(None)
                except Refusal as refusal:
                    outcomes.append(refusal)
            for name in touched:
                self.pipeline.commit(self.pipeline.tables[name])
        return outcomes

    def _write(self, update: Update, touched: set[str]) -> None:
        entity = update.entity
        if isinstance(entity, TableEntry):
            table = self._named_table(entity)
            if entity.is_default:
                self._write_default(update.kind, table, entity)
            else:
                self._write_entry(update.kind, table, entity)
            touched.add(table.name)
        elif isinstance(entity, MulticastGroup):
            self._write_group(update.kind, entity)
        elif update.kind is not UpdateKind.MODIFY:
            raise Refusal(Code.INVALID_ARGUMENT, f"{entity}: only MODIFY is possible, not {update.kind.name}")
        elif isinstance(entity, CounterEntry):
            counter = _required("counter", entity.counter, self.schema.counter)
            cells = self.pipeline.counters[counter.name]
            _set_counts(cells[_cells(entity.index, len(cells), str(entity))], entity.counts)
        elif isinstance(entity, DirectCounterEntry):
            table, state, entry = self._counted_entry(entity)
            number = self._existing(table, state, entry).number
            _set_counts(state.counters[number], entity.counts)
        else:
            self._write_register(entity)

    def kept(self) -> Iterator[Update]:
        """Yields the updates after which a fresh pipeline has the same entries, default actions and groups."""
        for table in self.schema.tables:
            state = self.pipeline.tables[table.name]
            own = state.table.default_action, state.table.default_data
            if state.default != own or (table.name, (), 0) in self._metadata:
                for entry in self._read_table(table, TableEntry(is_default=True)):
                    yield Update(UpdateKind.MODIFY, entry)
            if not table.is_const:
                for entry in self._read_table(table, TableEntry()):
                    yield Update(UpdateKind.INSERT, entry)
        for group in self._read_groups(MulticastGroup()):
            yield Update(UpdateKind.INSERT, group)

    def _named_table(self, entry: TableEntry) -> TableInfo:
        return _required("table", entry.table, self.schema.table)

    def _write_entry(self, kind: UpdateKind, table: TableInfo, entry: TableEntry) -> None:
        state = self.pipeline.tables[table.name]
        if table.is_const or state.table.const_entries is not None:
            raise Refusal(Code.PERMISSION_DENIED, f"table {table.alias}: its entries are part of the program")
        if not table.match:
            raise Refusal(Code.INVALID_ARGUMENT, f"table {table.alias} has no key, so it has only a default action")
        key = keys.key(table, entry)
        known = state.entries.get((key, entry.priority))
        if kind is UpdateKind.DELETE:
            if known is None:
                raise Refusal(Code.NOT_FOUND, f"{entry} does not exist")
            state.delete(known)
            self._metadata.pop((table.name, key, entry.priority), None)
            return
        number, data = self._action(table, entry)
        if entry.counts is not None:
            _counter_of(table)
        for field, (first, _) in zip(state.table.key, key, strict=True):
            if field.match_type != "range" and first & ~field.mask:
                raise Refusal(
                    Code.INVALID_ARGUMENT,
                    f"{entry}: {field.name}: 0x{first:x} never matches: the key's mask is 0x{field.mask:x}",
                )
        new = Entry(match=key, action=number, data=data, priority=entry.priority)
        if kind is UpdateKind.INSERT:
            if known is not None:
                raise Refusal(Code.ALREADY_EXISTS, f"{entry} exists already; MODIFY changes it")
            if len(state.entries) >= state.table.max_size:
                raise Refusal(
                    Code.RESOURCE_EXHAUSTED,
                    f"table {table.alias} is full ({plural(state.table.max_size, 'entry', 'entries')})",
                )
            state.insert(new)
        else:
            if known is None:
                raise Refusal(Code.NOT_FOUND, f"{entry} does not exist; INSERT makes it")
            state.modify(new)
        if entry.counts is not None:
            _set_counts(state.counters[state.entries[new.identity].number], entry.counts)
        self._remember((table.name, key, entry.priority), entry)

    def _write_default(self, kind: UpdateKind, table: TableInfo, entry: TableEntry) -> None:
        if kind is not UpdateKind.MODIFY:
            raise Refusal(Code.INVALID_ARGUMENT, f"table {table.alias}: a default action is always there: use MODIFY")
        if entry.match or entry.priority:
            raise Refusal(Code.INVALID_ARGUMENT, f"table {table.alias}: a default action has no match and no priority")
        state = self.pipeline.tables[table.name]
        if table.default_is_const or state.table.default_const:
            raise Refusal(Code.PERMISSION_DENIED, f"table {table.alias}: its default action is part of the program")
        if entry.action:
            state.default = self._action(table, entry)
        else:
            state.reset_default()
        self._remember((table.name, (), 0), entry)

    def _remember(self, key: tuple[str, keys.Key, int], entry: TableEntry) -> None:
        self._metadata.pop(key, None)
        if entry.metadata or entry.controller_metadata:
            self._metadata[key] = (entry.metadata, entry.controller_metadata)

    def _action(self, table: TableInfo, entry: TableEntry) -> tuple[int, tuple[int, ...]]:
        if not entry.action:
            raise Refusal(Code.INVALID_ARGUMENT, f"{entry}: the action is missing")
        use = self.schema.table_action(table, entry.action)
        if not (use.as_default if entry.is_default else use.in_entries):
            kind = "an entry" if entry.is_default else "a default action"
            raise Refusal(
                Code.PERMISSION_DENIED, f"table {table.alias}: {use.action.alias} may only be the action of {kind}"
            )
        return self._numbers[table.name][use.action.name], keys.data(use.action, entry.params)

    def _write_group(self, kind: UpdateKind, group: MulticastGroup) -> None:
        exists = group.group in self.pipeline.groups
        if kind is UpdateKind.INSERT and exists:
            raise Refusal(Code.ALREADY_EXISTS, f"{group} exists already; MODIFY changes it")
        if kind is not UpdateKind.INSERT and not exists:
            raise Refusal(Code.NOT_FOUND, f"{group} does not exist")
        if kind is UpdateKind.DELETE:
            self.pipeline.delete_group(group.group)
        else:
            self.pipeline.set_group(group.group, [(r.port, r.instance) for r in sorted(group.replicas)])

    def _write_register(self, entity: RegisterEntry) -> None:
        info = _required("register", entity.register, self.schema.register)
        cells = self._register_cells(info)
        value = entity.value or 0
        low, high = (-(1 << (info.bits - 1)), 1 << (info.bits - 1)) if info.signed else (0, 1 << info.bits)
        if not low <= value < high:
            raise Refusal(Code.OUT_OF_RANGE, f"{entity}: {value} does not fit in {info.bits} bits")
        cells[_cells(entity.index, len(cells), str(entity))] = value & ((1 << info.bits) - 1)

    # --- reads --------------------------------------------------------------------------------------------------------

    def read(self, query: Entity) -> Iterator[Entity]:
        """Reads entities; a field at its default matches everything. (section 11.4)

        A query for an entry that does not exist is not an error, but one for a multicast group is (as on BMv2).
        """
        if isinstance(query, TableEntry):
            for table in [self.schema.table(query.table)] if query.table else self.schema.tables:
                yield from self._read_table(table, query)
        elif isinstance(query, DirectCounterEntry):
            yield from self._read_direct_counters(query)
        elif isinstance(query, MulticastGroup):
            yield from self._read_groups(query)
        elif isinstance(query, CounterEntry):
            for counter in [self.schema.counter(query.counter)] if query.counter else self.schema.counters:
                yield from self._read_counter(counter, query.index)
        else:
            for register in [self.schema.register(query.register)] if query.register else self.schema.registers:
                yield from self._read_register(register, query.index)

    def _read_table(self, table: TableInfo, query: TableEntry) -> Iterator[TableEntry]:
        state = self.pipeline.tables[table.name]
        if query.is_default:
            number, data = state.default
            yield self._described(table, Entry(match=(), action=number, data=data), {}, is_default=True)
            return
        key = keys.key(table, query) if query.match else None
        action = self.schema.table_action(table, query.action).action.alias if query.action else None
        with self.pipeline.lock:
            entries = list(state.entries.values())
        for entry in entries:
            priority = keys.priority(table, state, entry)
            if key is not None and (entry.match, priority) != (key, query.priority):
                continue
            if query.priority and priority != query.priority:
                continue
            counts = None
            if query.counts is not None and table.direct_counter is not None:
                counts = _counts(state.counters[entry.number], table.direct_counter)
            match = keys.match_of(table, entry.match)
            found = self._described(table, entry, match, priority=priority, counts=counts)
            if action in (None, found.action):
                yield found

    def _described(self, table: TableInfo, entry: Entry, match: dict[str, Match], **rest: Any) -> TableEntry:
        metadata, controller_metadata = self._metadata.get((table.name, *entry.identity), (b"", 0))
        action = self.pipeline.program.actions[entry.action]
        return TableEntry(
            table=table.alias,
            match=match,
            # the P4Info may not list a default action
            action=self._aliases[table.name].get(entry.action, action.name),
            params={name: value for (name, _), value in zip(action.parameters, entry.data, strict=True)},
            metadata=metadata,
            controller_metadata=controller_metadata,
            **rest,
        )

    def _read_direct_counters(self, query: DirectCounterEntry) -> Iterator[DirectCounterEntry]:
        if query.entry.table and (query.entry.match or query.entry.is_default):
            table, state, entry = self._counted_entry(query)
            counts = state.counters[self._existing(table, state, entry).number]
            yield DirectCounterEntry(entry=entry, counts=_counts(counts, _counter_of(table)))
            return
        if query.entry.table:
            tables = [self.schema.table(query.entry.table)]
        else:
            tables = [table for table in self.schema.tables if table.direct_counter is not None]
        for table in tables:
            _counter_of(table)
            for found in self._read_table(table, TableEntry(counts=CounterData())):
                bare = TableEntry(table=found.table, match=found.match, priority=found.priority)
                yield DirectCounterEntry(entry=bare, counts=found.counts)

    def _counted_entry(self, entity: DirectCounterEntry) -> tuple[TableInfo, TableState, TableEntry]:
        entry = entity.entry
        table = self._named_table(entry)
        _counter_of(table)
        if entry.is_default:
            raise Refusal(
                Code.UNIMPLEMENTED, f"table {table.alias}: the embedded target does not count the default action"
            )
        return table, self.pipeline.tables[table.name], entry

    def _existing(self, table: TableInfo, state: TableState, entry: TableEntry) -> Entry:
        key = keys.key(table, entry)
        for candidate in (entry.priority, entry.priority - keys.MOST_PRIORITY if entry.priority else 0):
            found = state.entries.get((key, candidate))
            if found is not None:
                return found
        raise Refusal(Code.NOT_FOUND, f"{entry} does not exist")

    def _read_groups(self, query: MulticastGroup) -> Iterator[MulticastGroup]:
        with self.pipeline.lock:
            groups = dict(self.pipeline.groups)
        if query.group:
            if query.group not in groups:
                raise Refusal(Code.NOT_FOUND, f"{query} does not exist")
            groups = {query.group: groups[query.group]}
        for number, replicas in sorted(groups.items()):
            yield MulticastGroup(group=number, replicas=frozenset(Replica(port, copy) for port, copy in replicas))

    def _read_counter(self, info: CounterInfo, index: int | None) -> Iterator[CounterEntry]:
        cells = self.pipeline.counters[info.name]
        place = _cells(index, len(cells), f"{info.alias}[{index}]")
        with self.pipeline.lock:
            values = cells[place].reshape(-1, 2).copy()
        for i, pair in enumerate(values, start=index or 0):
            yield CounterEntry(counter=info.alias, index=i, counts=_counts(pair, info))

    def _read_register(self, info: RegisterInfo, index: int | None) -> Iterator[RegisterEntry]:
        cells = self._register_cells(info)
        place = _cells(index, len(cells), f"{info.alias}[{index}]")
        with self.pipeline.lock:
            values = np.atleast_1d(cells[place]).tolist()
        half = 1 << (info.bits - 1)
        for i, value in enumerate(values, start=index or 0):
            signed = info.signed and value >= half
            yield RegisterEntry(register=info.alias, index=i, value=value - 2 * half if signed else value)

    def _register_cells(self, info: RegisterInfo) -> Cells:
        if not info.bits:
            raise Refusal(Code.UNIMPLEMENTED, f"register {info.alias}: its cells are not plain numbers")
        return self.pipeline.register(info.name)


# --- cells ----------------------------------------------------------------------------------------------------------


def _required(what: str, name: str, find: Callable[[str], _Info]) -> _Info:
    """Finds the object of a write by its name, which must not be empty."""
    if not name:
        raise Refusal(Code.INVALID_ARGUMENT, f"a write must name one {what}")
    return find(name)


def _cells(index: int | None, size: int, what: str) -> int | slice:
    if index is None:
        return slice(None)
    if not 0 <= index < size:
        raise Refusal(Code.OUT_OF_RANGE, f"{what}: index {index}: expected 0 to {size - 1}")
    return index


def _counter_of(table: TableInfo) -> CounterInfo:
    if table.direct_counter is None:
        raise Refusal(Code.INVALID_ARGUMENT, f"table {table.alias} has no direct counter")
    return table.direct_counter


def _counts(cell: Words, info: CounterInfo) -> CounterData:
    return CounterData(
        packets=int(cell[0]) if info.counts_packets else None,
        bytes=int(cell[1]) if info.counts_bytes else None,
    )


def _set_counts(cells: Words, counts: CounterData | None) -> None:
    """Args: cells: a view of one or more pairs."""
    for column in (0, 1):
        value = (counts.bytes if column else counts.packets) if counts is not None else 0
        cells[..., column] = value or 0

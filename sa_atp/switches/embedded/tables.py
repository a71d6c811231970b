"""Entries of a table, and the array in which translated code looks them up."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sa_atp.basics.arrays import Words
from sa_atp.basics.words import plural
from sa_atp.switches.embedded.errors import EntryError
from sa_atp.switches.embedded.program import Action, Program, Table, words_of
from sa_atp.switches.embedded.translate.layout import TableLayout
from sa_atp.switches.embedded.translate.matching import HASH_MULTIPLIERS

MASK64 = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An entry of a table.

    match: for each key field (value, mask), or (low, high) for a range.
    priority: the larger wins (P4Runtime); only if a field is ternary, range or optional.
    """

    match: tuple[tuple[int, int], ...]
    action: int
    data: tuple[int, ...]
    priority: int = 0
    number: int = field(default=0, compare=False)  # index of its direct counter

    @property
    def identity(self) -> tuple[tuple[tuple[int, int], ...], int]:
        return (self.match, self.priority)


class TableState:
    """The entries of a table and their array, which is rebuilt when they change.

    The array is replaced and never changed in place, so that a batch sees one consistent table.
    """

    def __init__(self, program: Program, table: Table, layout: TableLayout) -> None:
        self.program = program
        self.table = table
        self.layout = layout
        self.entries: dict[tuple[tuple[tuple[int, int], ...], int], Entry] = {}
        self.default = (table.default_action, table.default_data)
        self.counters = np.zeros((table.max_size + 1, 2), np.uint64)
        self._free = list(range(1, table.max_size + 1))  # a heap: BMv2 gives the lowest free handle
        self.rows = np.zeros((0, 0), np.uint64)
        self.index = np.zeros(0, np.uint64)
        for i, const in enumerate(table.const_entries or ()):
            # BMv2's priorities: the smaller number wins
            entry = Entry(
                match=const.match, action=const.action_id, data=const.data, priority=-const.priority, number=i + 1
            )
            self.entries[entry.identity] = entry
        self.rebuild()

    # --- changes ------------------------------------------------------------------------------------------------------

    def insert(self, entry: Entry) -> None:
        self._check(entry)
        if entry.identity in self.entries:
            raise EntryError(f"table {self.table.name}: an entry with this match exists already")
        if not self._free:
            raise EntryError(f"table {self.table.name}: full ({plural(self.table.max_size, 'entry', 'entries')})")
        number = heapq.heappop(self._free)
        self.counters[number] = 0
        self.entries[entry.identity] = Entry(
            match=entry.match, action=entry.action, data=entry.data, priority=entry.priority, number=number
        )

    def modify(self, entry: Entry) -> None:
        self._check(entry)
        old = self._existing(entry)
        self.entries[entry.identity] = Entry(
            match=entry.match, action=entry.action, data=entry.data, priority=entry.priority, number=old.number
        )

    def delete(self, entry: Entry) -> None:
        self._mutable()
        old = self._existing(entry)
        del self.entries[entry.identity]
        heapq.heappush(self._free, old.number)

    def set_default(self, action: int, data: Sequence[int]) -> None:
        if self.table.default_const:
            raise EntryError(f"table {self.table.name}: its default action is constant")
        self._check_action(action, data)
        self.default = (action, tuple(data))

    def reset_default(self) -> None:
        self.default = (self.table.default_action, self.table.default_data)

    def clear(self) -> None:
        """Removes all entries of the control plane."""
        if self.table.const_entries is None:
            self.entries.clear()
            self._free = list(range(1, self.table.max_size + 1))
        self.reset_default()
        self.counters[:] = 0
        self.rebuild()

    def _existing(self, entry: Entry) -> Entry:
        old = self.entries.get(entry.identity)
        if old is None:
            raise EntryError(f"table {self.table.name}: there is no such entry")
        return old

    def _mutable(self) -> None:
        if self.table.const_entries is not None:
            raise EntryError(f"table {self.table.name}: its entries are constant")
        if not self.table.key:
            raise EntryError(f"table {self.table.name}: it has no key, so it has only a default action")

    def _check(self, entry: Entry) -> None:
        self._mutable()
        if len(entry.match) != len(self.table.key):
            raise EntryError(
                f"table {self.table.name}: {len(entry.match)} match fields, expected {len(self.table.key)}"
            )
        for key, (first, second) in zip(self.table.key, entry.match, strict=True):
            limit = 1 << key.bits
            if not (0 <= first < limit and 0 <= second < limit):
                raise EntryError(f"table {self.table.name}: {key.name} does not fit in {key.bits} bits")
            if key.match_type == "range":
                if first > second:
                    raise EntryError(f"table {self.table.name}: {key.name}: the range {first}..{second} is empty")
            elif first & ~key.mask:
                raise EntryError(
                    f"table {self.table.name}: {key.name}: 0x{first:x} never matches: the key's mask is 0x{key.mask:x}"
                )
            elif first & ~second:
                raise EntryError(f"table {self.table.name}: {key.name}: the value has bits outside its mask")
        self._check_action(entry.action, entry.data)

    def _check_action(self, action: int, data: Sequence[int]) -> None:
        allowed = {*self.table.action_ids, self.table.default_action}
        if action not in allowed:
            raise EntryError(f"table {self.table.name}: the action does not belong to it")
        parameters = self.program.actions[action].parameters
        name = self.program.actions[action].name
        if len(parameters) != len(data):
            raise EntryError(f"action {name}: {plural(len(data), 'parameter')}, expected {len(parameters)}")
        for (parameter, bits), value in zip(parameters, data, strict=True):
            if not 0 <= value < 1 << bits:
                raise EntryError(f"action {name}: {parameter} = {value} does not fit in {bits} bits")

    # --- array form ---------------------------------------------------------------------------------------------------

    def ordered(self) -> list[Entry]:
        """Entries in order of precedence; of equal priorities BMv2 prefers the lowest handle, here the number."""
        if any(k.needs_priority for k in self.table.key):
            return sorted(self.entries.values(), key=lambda e: (-e.priority, e.number))
        # longest prefix first; for exact tables all are equal
        return sorted(self.entries.values(), key=lambda e: -sum(mask.bit_count() for _, mask in e.match))

    def rebuild(self) -> None:
        """Makes the array of the entries (see TableLayout for its columns)."""
        kind = self.layout.kind
        if kind == "exact":
            self.rows = self._hash_table()
        else:
            ordered = self.ordered()
            rows = np.zeros((1 + len(ordered), self.layout.columns), np.uint64)
            for i, entry in enumerate(ordered):
                if kind == "scan":
                    rows[i + 1, : 2 * len(self.layout.words)] = self._scan_words(entry)
                self._result(rows[i + 1], entry.action, entry.data, entry.number)
            if kind == "direct":
                self.index = self._direct_index(ordered)
            self.rows = rows
        self._result(self.rows[0], *self.default, 0)

    def _result(self, row: Words, action: int, data: Sequence[int], number: int) -> None:
        column = self.layout.result
        row[column] = action
        for (_, bits), value in zip(self.program.actions[action].parameters, data, strict=True):
            for low, count in words_of(bits):
                column += 1
                row[column] = value >> low & (1 << count) - 1
        row[self.layout.entry_column] = number

    def _pack(self, values: Sequence[int]) -> list[int]:
        return [sum(piece.of(values) for piece in word) for word in self.layout.words]

    def _scan_words(self, entry: Entry) -> list[int]:
        firsts = self._pack([m[0] for m in entry.match])
        seconds = self._pack([m[1] for m in entry.match])
        return [v for pair in zip(firsts, seconds, strict=True) for v in pair]

    def _hash_table(self) -> Words:
        size = 2
        while size < 2 * len(self.entries) + 1:
            size *= 2
        rows = np.zeros((1 + size, self.layout.columns), np.uint64)
        for entry in self.entries.values():
            words = self._pack([m[0] for m in entry.match])
            hashed = 0
            for i, word in enumerate(words):
                hashed ^= (word * HASH_MULTIPLIERS[i % 4]) & MASK64
            at = (hashed ^ (hashed >> 29)) & (size - 1)
            while rows[1 + at, 0]:
                at = (at + 1) & (size - 1)
            rows[1 + at, 0] = 1
            rows[1 + at, 1 : 1 + len(words)] = words
            self._result(rows[1 + at], entry.action, entry.data, entry.number)
        return rows

    def _direct_index(self, ordered: Iterable[Entry]) -> Words:
        """For every value of a narrow key, the row of the matching entry."""
        bits = sum(k.bits for k in self.table.key)
        values = np.arange(1 << bits, dtype=np.uint64)
        index = np.zeros(1 << bits, np.uint64)
        for row, entry in reversed(list(enumerate(ordered, 1))):
            value = mask = 0
            for key, (v, m) in zip(self.table.key, entry.match, strict=True):
                value, mask = (value << key.bits) | v, (mask << key.bits) | m
            index[(values & np.uint64(mask)) == np.uint64(value)] = row
        return index


def by_name(actions: Mapping[int, Action], table: Table, name: str) -> int:
    """Number of a table's action: the compiler keeps a copy of an action for each table that uses it."""
    for i in {*table.action_ids, table.default_action}:
        if actions[i].name == name or actions[i].name.rsplit(".", 1)[-1] == name:
            return i
    known = ", ".join(sorted(actions[i].name for i in table.action_ids))
    raise EntryError(f"table {table.name}: there is no action {name}; it has {known}")

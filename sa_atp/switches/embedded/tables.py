"""Entries of a table, and the array in which translated code looks them up."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from sa_atp.basics.arrays import Words
from sa_atp.switches.embedded.program import Entry, Program, Table, words_of
from sa_atp.switches.embedded.translate.layout import TableLayout
from sa_atp.switches.embedded.translate.matching import HASH_MULTIPLIERS

MASK64 = (1 << 64) - 1


class TableState:
    """The entries of a table and their array, which is rebuilt when they change.

    The array is replaced and never changed in place, so that a batch sees one consistent table. `Forwarding` checks
    changes before it makes them.
    """

    def __init__(self, program: Program, table: Table, layout: TableLayout) -> None:
        self.program = program
        self.table = table
        self.layout = layout
        self.default = (table.default_action, table.default_data)
        self.counters = np.zeros((table.max_size + 1, 2), np.uint64)
        self._free = list(range(1, table.max_size + 1))  # a heap: BMv2 gives the lowest free handle
        self.rows = np.zeros((0, 0), np.uint64)
        self.index = np.zeros(0, np.uint64)
        self.entries = {entry.identity: entry for entry in table.const_entries or ()}
        self.rebuild()

    # --- changes ------------------------------------------------------------------------------------------------------

    def insert(self, entry: Entry) -> None:
        number = heapq.heappop(self._free)
        self.counters[number] = 0
        self.entries[entry.identity] = replace(entry, number=number)

    def modify(self, entry: Entry) -> None:
        self.entries[entry.identity] = replace(entry, number=self.entries[entry.identity].number)

    def delete(self, entry: Entry) -> None:
        del self.entries[entry.identity]
        heapq.heappush(self._free, entry.number)

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

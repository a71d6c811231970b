"""Translates match-action: the control graphs, table look-ups and the choice of the action."""

from collections.abc import Mapping, Sequence

from sa_atp.switches.embedded.errors import PipelineError
from sa_atp.switches.embedded.program import Control, KeyField, Table, words_of
from sa_atp.switches.embedded.translate.expressions import Translator, Value
from sa_atp.switches.embedded.translate.layout import TableLayout
from sa_atp.switches.embedded.translate.part import Part, topological
from sa_atp.switches.embedded.translate.statements import Statements
from sa_atp.switches.embedded.translate.usage import asked_for

# Odd constants of the multiplicative hash; the runtime fills tables with the same one.
HASH_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


class Matching(Part):
    def __init__(self, translator: Translator, statements: Statements) -> None:
        super().__init__(translator)
        self.statements = statements
        self.valid: frozenset[str] = frozenset()  # headers that are valid at the node that is being written

    # --- look-up functions ------------------------------------------------------------------------------------------

    def lookup_functions(self) -> None:
        """Writes a function for each table, which takes the key words and returns the matching row."""
        for layout in self.layout.tables.values():
            if layout.kind == "exact":
                self._exact_function(layout)
            elif layout.kind == "scan":
                self._scan_function(layout)

    def _function(self, layout: TableLayout) -> str:
        return self.translator.names.of("find", layout.table.name)

    def array(self, layout: TableLayout) -> str:
        return self.translator.names.of("table", layout.table.name)

    def index(self, layout: TableLayout) -> str:
        return self.translator.names.of("index", layout.table.name)

    def _exact_function(self, layout: TableLayout) -> None:
        """Writes a look-up by open addressing: row 0 is for misses, rows 1 to 2**k are the hash table."""
        words = [f"word{i}" for i in range(len(layout.words))]
        self.out("@inner")
        with self.out.block(f"def {self._function(layout)}(rows, {', '.join(words)}):"):
            self.out("last = u64(rows.shape[0]) - " + self.constant(2))
            terms = [f"{w} * {self.constant(HASH_MULTIPLIERS[i % 4])}" for i, w in enumerate(words)]
            self.out(f"hashed = u64({' ^ '.join(terms)})")
            self.out(f"at = (hashed ^ (hashed >> {self.constant(29)})) & last")
            with self.out.block(f"while rows[at + {self.constant(1)}, 0] != {self.constant(0)}:"):
                tests = [f"u64(rows[at + {self.constant(1)}, {i + 1}]) == {w}" for i, w in enumerate(words)]
                with self.out.block(f"if {' and '.join(tests)}:"):
                    self.out(f"return at + {self.constant(1)}")
                self.out(f"at = (at + {self.constant(1)}) & last")
            self.out(f"return {self.constant(0)}")
        self.out()

    def _scan_function(self, layout: TableLayout) -> None:
        words = [f"word{i}" for i in range(len(layout.words))]
        ranges = any(k.match_type == "range" for k in layout.table.key)
        self.out("@inner")
        with self.out.block(f"def {self._function(layout)}(rows, {', '.join(words)}):"):
            with self.out.block("for row in range(1, rows.shape[0]):"):
                tests = []
                for i, word in enumerate(words):
                    first, second = f"u64(rows[row, {2 * i}])", f"u64(rows[row, {2 * i + 1}])"
                    if ranges and layout.table.key[i].match_type == "range":
                        tests.append(f"{first} <= {word} and {word} <= {second}")
                    else:
                        tests.append(f"({word} & {second}) == {first}")
                with self.out.block(f"if {' and '.join(tests)}:"):
                    self.out("return u64(row)")
            self.out(f"return {self.constant(0)}")
        self.out()

    # --- control graphs -----------------------------------------------------------------------------------------------

    def control(self, control: Control) -> None:
        """Writes nodes in topological order, each guarded by the number of the node to enter next; 0 is the end."""
        if control.first is None:
            return
        order, loop_at = topological(control.first, lambda name: self._following(control, name))
        if loop_at is not None:
            raise PipelineError(f"{control.name}: the control flow has a loop at {loop_at}")
        numbers: dict[str | None, int] = {name: i + 1 for i, name in enumerate(order)}
        numbers[None] = 0
        self.out("leaving = False")
        self.out(f"node = {numbers[control.first]}")
        valid = self._valid_headers(control, order)
        for name in order:
            self.valid = valid[name]
            with self.out.block(f"if node == {numbers[name]}:  # {name}"):
                if name in control.tables:
                    self._table(control.tables[name], numbers)
                    continue
                conditional = control.conditionals[name]
                condition = self.translator.expression(conditional.expression, f"condition {name}")
                self.out(
                    f"node = {numbers[conditional.true_next]} if {self.translator.boolean(condition)} "
                    f"else {numbers[conditional.false_next]}"
                )

    def _valid_headers(self, control: Control, order: Sequence[str]) -> Mapping[str, frozenset[str]]:
        """For each node, headers that are certainly valid: a condition has checked them, and no action removes them."""
        assert control.first is not None
        valid: dict[str, frozenset[str]] = {control.first: frozenset()}
        for name in order:
            here = valid[name]
            following = [(node, here) for node in self._following(control, name)]
            if name in control.conditionals:
                conditional = control.conditionals[name]
                asked = here.union(asked_for(conditional.expression)) - self.usage.removed
                following[0] = (conditional.true_next, asked)
            for node, headers in following:
                if node is not None:
                    valid[node] = valid.get(node, headers) & headers
        return valid

    def _following(self, control: Control, name: str) -> Sequence[str | None]:
        if name in control.conditionals:
            conditional = control.conditionals[name]
            return (conditional.true_next, conditional.false_next)
        if name not in control.tables:
            raise PipelineError(f"{control.name}: there is no node {name}")
        table = control.tables[name]
        return table.next_hit or tuple(table.next_by_action.values())

    def _table(self, table: Table, numbers: dict[str | None, int]) -> None:
        layout = self.layout.tables[table.name]
        if layout.kind == "none" and table.default_const:
            # a bare statement of the program, or a table that cannot have entries: only one action is possible
            action = self.program.actions[table.default_action]
            parameters = [Value(str(d), "constant", max(d.bit_length(), 1), d < 0, d) for d in table.default_data]
            self.statements.action(action, parameters)
            self._leave(self._next(table, table.default_action, numbers, hit=False), action)
            return
        array = self.array(layout)
        self.out(f"row = {self._find(layout)}")
        if table.with_counters:
            self._count(layout)
        hit = f"row != {self.constant(0)}"
        self.out(f"chosen = {array}[row, {layout.result}]")
        keyword = "if"
        for action_id in sorted({*table.action_ids, table.default_action}):
            action = self.program.actions[action_id]
            with self.out.block(f"{keyword} chosen == {self.constant(action_id)}:  # {action.name}"):
                parameters = []
                column = layout.result
                for name, bits in action.parameters:
                    words = []
                    for low, _ in words_of(bits):
                        column += 1
                        words.append(
                            self.translator.names.of("parameter", action.name, name, *([str(low)] * (low > 0)))
                        )
                        self.out(f"{words[-1]} = u64({array}[row, {column}])")
                    parameters.append(self.translator.of_words(words, bits))
                self.statements.action(action, parameters)
                if table.next_hit:
                    on_hit, on_miss = table.next_hit
                    self.out(f"node = {numbers[on_hit]} if {hit} else {numbers[on_miss]}")
                    self._leave(None, action)
                else:
                    self._leave(self._next(table, action_id, numbers, hit=True), action)
            keyword = "elif"

    def _next(self, table: Table, action_id: int, numbers: dict[str | None, int], hit: bool) -> int:
        if table.next_hit:
            return numbers[table.next_hit[0 if hit else 1]]
        return numbers[table.next_by_action.get(action_id)]

    def _leave(self, following: int | None, action: object) -> None:
        if following is not None:
            self.out(f"node = {following}")
        primitives = getattr(action, "primitives", ())
        if any(p["op"] == "exit" for p in primitives):
            with self.out.block("if leaving:"):
                self.out("node = 0")

    def _find(self, layout: TableLayout) -> str:
        table = layout.table
        if layout.kind == "none":
            return self.constant(0)
        parts: list[dict[int, str]] = []  # for each key field its words, by their lowest bit
        for key in table.key:
            value = self.translator.read_field(key.header, key.field, f"key of table {table.name}")
            words = self.translator.words(value, key.bits, f"key of table {table.name}")
            parts.append({})
            for (low, bits), word in zip(words_of(key.bits), words, strict=True):
                part = self._where_valid(key, word)
                mask = key.mask >> low & (1 << bits) - 1
                parts[-1][low] = f"({part} & {self.constant(mask)})" if key.is_masked else part
        if layout.kind == "direct":
            code, shift = [], 0
            for key, (part,) in zip(reversed(table.key), (p.values() for p in reversed(parts)), strict=True):
                code.append(f"({part} << {self.constant(shift)})" if shift else part)
                shift += key.bits
            return f"u64({self.index(layout)}[{' | '.join(code)}])"
        words = [
            " | ".join(
                f"({parts[p.field][p.low]} << {self.constant(p.shift)})" if p.shift else parts[p.field][p.low]
                for p in word
            )
            for word in layout.words
        ]
        return f"{self._function(layout)}({self.array(layout)}, {', '.join(words)})"

    def _where_valid(self, key: KeyField, code: str) -> str:
        """A field of an invalid header is zero in a key (behavioral-model, MatchKeyBuilder).

        Its variable can be another value only if the program has written it, or has made the header invalid.
        """
        program = self.program
        header, name = program.aliases.get((key.header, key.field), (key.header, key.field))
        if name == "$valid$" or program.headers[header].metadata:
            return code
        if header in self.valid or not (header in self.usage.removed or (header, name) in self.usage.written):
            return code
        return f"({code} if {self.translator.valid(header)} else {self.constant(0)})"

    def _count(self, layout: TableLayout) -> None:
        """Writes the direct counter of the entry that was hit."""
        array = self.translator.names.of("entries_counter", layout.table.name)
        with self.out.block(f"if row != {self.constant(0)}:"):
            self.out(f"entry = {self.array(layout)}[row, {layout.entry_column}]")
            self.out(f"{array}[entry, 0] += {self.constant(1)}")
            self.out(f"{array}[entry, 1] += u64(length)")

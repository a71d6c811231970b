"""Reads BMv2 JSON, as p4c writes it, into a Program.

It refuses by name every construct that the translator does not support, so a program either runs as on BMv2 or does not
load.

Source: behavioral-model, docs/JSON_format.md (format versions 2.18 and later).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sa_atp.switches.embedded.errors import PipelineError, Unsupported, reading_json
from sa_atp.switches.embedded.program import (
    WORD_BITS,
    Action,
    Calculation,
    Checksum,
    Conditional,
    Control,
    Counter,
    Entry,
    Field,
    Header,
    KeyField,
    ParserState,
    Program,
    Register,
    Table,
    Transition,
    number,
)


def load(source: Path | str | bytes | Mapping[str, Any]) -> Program:
    """Reads a program that p4c-bm2-ss compiled.

    Args:
        source: path of the JSON, its text, or the parsed object.

    Raises:
        PipelineError: not BMv2 JSON, or inconsistent; Unsupported: it uses what this target does not execute.
    """
    where = str(source) if isinstance(source, Path) else "pipeline"
    if isinstance(source, Path):
        try:
            source = source.read_bytes()
        except OSError as error:
            raise PipelineError(f"{where}: {error.strerror or error}") from None
    if isinstance(source, str | bytes):
        try:
            source = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise PipelineError(f"{where}: not BMv2 JSON ({error})") from None
    if not isinstance(source, Mapping) or "pipelines" not in source or "parsers" not in source:
        raise PipelineError(f"{where}: not BMv2 JSON: expected the output of p4c-bm2-ss, with parsers and pipelines")
    with reading_json(where):
        return _Loader(source).program()


class _Loader:
    def __init__(self, json: Mapping[str, Any]) -> None:
        self.json = json
        self.headers: dict[str, Header] = {}
        self.actions: dict[int, Action] = {}

    def program(self) -> Program:
        self._refuse_whole_sections()
        self.headers = {h.name: h for h in self._headers()}
        self.actions = {a["id"]: self._action(a) for a in self.json["actions"]}
        parser = self._only("parsers")
        calculations = {c["name"]: self._calculation(c) for c in self.json.get("calculations", ())}
        controls = {p["name"]: self._control(p) for p in self.json["pipelines"]}
        states = [self._state(s) for s in parser["parse_states"]]
        deparser = self._only("deparsers")
        if deparser.get("primitives"):
            raise Unsupported("a statement other than emit", "deparser")
        return Program(
            name=self.json.get("program", "program"),
            headers=self.headers,
            stacks=self._groups("header_stacks"),
            unions=self._groups("header_unions"),
            states={s.name: s for s in states},
            first_state=parser["init_state"],
            deparse_order=tuple(deparser["order"]),
            actions=self.actions,
            ingress=controls["ingress"],
            egress=controls["egress"],
            registers=tuple(self._register(r) for r in self.json.get("register_arrays", ())),
            counters=tuple(
                Counter(name=c["name"], size=c["size"])
                for c in self.json.get("counter_arrays", ())
                if not c["is_direct"]
            ),
            calculations=calculations,
            checksums=tuple(self._checksum(c, calculations) for c in self.json.get("checksums", ())),
            errors=dict(self.json.get("errors", ())),
            aliases={
                (alias.split(".", 1)[0], alias.split(".", 1)[1]): (target[0], target[1])
                for alias, target in self.json.get("field_aliases", ())
            },
        )

    def _refuse_whole_sections(self) -> None:
        for section, what in (
            ("header_union_stacks", "a stack of header unions"),
            ("meter_arrays", "meter"),
            ("parse_vsets", "parser value set"),
            ("extern_instances", "extern"),
        ):
            for item in self.json.get(section, ()):
                raise Unsupported(what, item["name"])

    def _with_elements(self, node: Any) -> Any:
        """A piece of JSON in which `stack[expression].field` is one operand of type "element", which names the field.

        BMv2 JSON has it as an access by field number to a dereferenced stack.
        """
        if isinstance(node, list):
            return [self._with_elements(child) for child in node]
        if not isinstance(node, Mapping):
            return node
        value = node.get("value")
        if node.get("type") == "expression" and isinstance(value, Mapping):
            if value.get("op") == "access_field" and value["left"]["value"].get("op") == "dereference_header_stack":
                place = value["left"]["value"]
                stack = place["left"]["value"]
                field = self.headers[self._groups("header_stacks")[stack][0]].fields[value["right"]].name
                return {"type": "element", "value": [stack, field], "index": self._with_elements(place["right"])}
            inner = self._with_elements(value)
            return inner if inner.get("type") == "element" else {**node, "value": inner}
        return {key: self._with_elements(child) for key, child in node.items()}

    def _only(self, section: str) -> Mapping[str, Any]:
        items = self.json[section]
        if len(items) != 1:
            raise Unsupported(f"{len(items)} {section}", "program")
        return items[0]  # type: ignore[no-any-return]

    def _groups(self, section: str) -> dict[str, tuple[str, ...]]:
        names = {header["id"]: header["name"] for header in self.json["headers"]}
        return {group["name"]: tuple(names[i] for i in group["header_ids"]) for group in self.json.get(section, ())}

    def _headers(self) -> Iterator[Header]:
        types = {t["name"]: t for t in self.json["header_types"]}
        for instance in self.json["headers"]:
            fields: list[Field] = []
            offset = 0
            kind = types[instance["header_type"]]
            for name, bits, *signed in kind["fields"]:
                is_varbit = bits == "*"
                bits = 0 if is_varbit else bits
                if is_varbit and offset % 8:
                    raise Unsupported("a varbit within a byte", f"{instance['name']}.{name}")
                fields.append(
                    Field(
                        name=name,
                        bits=bits,
                        signed=bool(signed and signed[0]),
                        offset_bits=offset,
                        is_varbit=is_varbit,
                    )
                )
                offset += bits
            if offset % 8 and not instance["metadata"]:
                raise Unsupported(f"a header of {offset} bits (not whole bytes)", instance["name"])
            yield Header(
                name=instance["name"],
                fields=tuple(fields),
                metadata=instance["metadata"],
                index={f.name: f for f in fields},
                most_bytes=kind["max_length"] if any(f.is_varbit for f in fields) else offset // 8,
            )

    def _state(self, state: Mapping[str, Any]) -> ParserState:
        where = f"parser state {state['name']}"
        transitions = []
        for t in state["transitions"]:
            if t.get("type", "hexstr") == "parse_vset":
                raise Unsupported("a parser value set", where)
            is_default = t.get("type") == "default" or t["value"] in (None, "default")
            transitions.append(
                Transition(
                    value=None if is_default else number(t["value"]),
                    mask=None if is_default or t["mask"] is None else number(t["mask"]),
                    next_state=t["next_state"],
                )
            )
        return ParserState(
            name=state["name"],
            operations=tuple(self._with_elements(state["parser_ops"])),
            key=tuple(state["transition_key"]),
            transitions=tuple(transitions),
        )

    def _action(self, action: Mapping[str, Any]) -> Action:
        return Action(
            id=action["id"],
            name=action["name"],
            parameters=tuple((p["name"], p["bitwidth"]) for p in action["runtime_data"]),
            primitives=tuple(self._with_elements(action["primitives"])),
        )

    def _control(self, pipeline: Mapping[str, Any]) -> Control:
        if pipeline.get("action_profiles"):
            raise Unsupported("an action profile", pipeline["action_profiles"][0]["name"])
        if pipeline.get("action_calls"):
            raise Unsupported("a bare action call", pipeline["action_calls"][0]["name"])
        return Control(
            name=pipeline["name"],
            first=pipeline["init_table"],
            tables={t["name"]: self._table(t, pipeline["name"]) for t in pipeline["tables"]},
            conditionals={
                c["name"]: Conditional(
                    name=c["name"],
                    expression=self._with_elements(c["expression"]),
                    true_next=c["true_next"],
                    false_next=c["false_next"],
                )
                for c in pipeline["conditionals"]
            },
        )

    def _table(self, table: Mapping[str, Any], pipeline: str) -> Table:
        where = f"table {table['name']}"
        if table["type"] != "simple":
            raise Unsupported(f"a table of type {table['type']}", where)
        if table.get("support_timeout"):
            raise Unsupported("idle timeout", where)
        if table.get("direct_meters"):
            raise Unsupported("a direct meter", where)
        key = []
        for k in table["key"]:
            if k["match_type"] not in ("exact", "lpm", "ternary", "range", "optional"):
                raise Unsupported(f"match kind {k['match_type']}", where)
            header, name = k["target"]
            if k.get("mask") is not None and k["match_type"] == "range":
                raise Unsupported(f"a masked range ({header}.{name})", where)
            bits = 1 if name == "$valid$" else self.headers[header].index[name].bits
            if not bits:
                raise Unsupported("a varbit as a key", where)
            if bits > WORD_BITS and table["match_type"] == "range":
                raise Unsupported(f"a key of {bits} bits beside a range ({WORD_BITS} at most)", where)
            if k["match_type"] == "lpm" and bits % 8:
                # BMv2 counts a prefix from the first bit of the first byte, which is then not a bit of the field
                raise Unsupported(f"a longest prefix of {bits} bits (whole bytes only)", where)
            key.append(
                KeyField(
                    name=k.get("name", f"{header}.{name}"),
                    match_type=k["match_type"],
                    header=header,
                    field=name,
                    bits=bits,
                    mask=number(k["mask"]) if k.get("mask") is not None else (1 << bits) - 1,
                )
            )
        by_name = {self.actions[i].name: i for i in table["action_ids"]}
        next_tables = table["next_tables"]
        hit = None
        if "__HIT__" in next_tables:
            hit = (next_tables["__HIT__"], next_tables["__MISS__"])
        default = table.get("default_entry")
        if default is None:
            raise Unsupported("no default action", where)
        default_const = bool(default.get("action_entry_const"))
        entries = None if table.get("entries") is None else self._const_entries(table["entries"], key, where)
        return Table(
            name=table["name"],
            id=table["id"],
            pipeline=pipeline,
            key=tuple(key),
            max_size=table["max_size"] if entries is None else len(entries),
            action_ids=tuple(table["action_ids"]),
            next_by_action={} if hit else {by_name[name]: node for name, node in next_tables.items()},
            next_hit=hit,
            default_action=default["action_id"],
            default_data=(
                tuple(number(d) for d in default["action_data"])  # the program's constants, which may be negative
                if default_const and not key
                else self._action_data(default, f"{where}: default action")
            ),
            default_const=default_const,
            const_entries=entries,
            with_counters=table["with_counters"],
            hidden=not key and table["name"].startswith("tbl_"),
        )

    def _const_entries(
        self, entries: Sequence[Mapping[str, Any]], key: Sequence[KeyField], where: str
    ) -> tuple[Entry, ...]:
        """The const entries of a table, in order; as on BMv2 no two may have the same match."""
        found: dict[tuple[Any, int], Entry] = {}
        for i, entry in enumerate(entries, 1):
            at = f"{where}: entry {i}"
            made = Entry(
                match=tuple(_const_match(part, k, at) for part, k in zip(entry["match_key"], key, strict=True)),
                # in BMv2 JSON the smaller number wins
                priority=-entry.get("priority", 0) if any(k.needs_priority for k in key) else 0,
                action=entry["action_entry"]["action_id"],
                data=self._action_data(entry["action_entry"], at),
                number=i,
            )
            if found.setdefault(made.identity, made) is not made:
                raise PipelineError(f"{at}: there is one with this match already")
        return tuple(found.values())

    def _action_data(self, entry: Mapping[str, Any], where: str) -> tuple[int, ...]:
        """Parameters as in a table: unsigned, as from a control plane."""
        data = tuple(number(d) for d in entry["action_data"])
        for (name, bits), value in zip(self.actions[entry["action_id"]].parameters, data, strict=True):
            if not 0 <= value < 1 << bits:
                raise Unsupported(f"the parameter {name} = {value} ({bits} bits)", where)
        return data

    def _register(self, register: Mapping[str, Any]) -> Register:
        if register.get("is_direct"):
            raise Unsupported("a direct register", register["name"])
        if register["bitwidth"] > 64:
            raise Unsupported(f"a register of {register['bitwidth']} bits (64 at most)", register["name"])
        return Register(name=register["name"], size=register["size"], bits=register["bitwidth"])

    def _calculation(self, calculation: Mapping[str, Any]) -> Calculation:
        # "custom" algorithms are the ordinary ones, as no control plane here can set another polynomial
        algorithm = calculation["algo"].removesuffix("_custom")
        if algorithm not in ("csum16", "crc16", "crc32", "identity", "xor16"):
            raise Unsupported(f"hash algorithm {calculation['algo']}", calculation["name"])
        inputs: list[Mapping[str, Any]] = []
        for part in calculation["input"]:
            if part["type"] == "header":
                inputs += (
                    {"type": "field", "value": [part["value"], f.name]} for f in self.headers[part["value"]].fields
                )
            elif part["type"] in ("field", "hexstr", "payload"):
                inputs.append(part)
            else:
                raise Unsupported(f"a checksum over a {part['type']}", calculation["name"])
        return Calculation(name=calculation["name"], algorithm=algorithm, inputs=tuple(inputs))

    def _checksum(self, checksum: Mapping[str, Any], calculations: Mapping[str, Calculation]) -> Checksum:
        calculation = calculations[checksum["calculation"]]
        if calculation.algorithm != "csum16":
            raise Unsupported(f"a checksum by {calculation.algorithm}", checksum["name"])
        header, name = checksum["target"]
        return Checksum(
            name=checksum["name"],
            header=header,
            field=name,
            calculation=calculation,
            verify=checksum["verify"],
            update=checksum["update"],
            condition=checksum.get("if_cond"),
        )


def _const_match(part: Mapping[str, Any], key: KeyField, where: str) -> tuple[int, int]:
    """(value, mask), or (low, high) of a range. As on BMv2, bits of the value outside the mask are cleared."""
    full = (1 << key.bits) - 1

    def fitting(name: str) -> int:
        value = number(part[name])
        if not 0 <= value <= full:
            raise PipelineError(f"{where}: {key.name}: {part[name]} does not fit in {key.bits} bits")
        return value

    if part["match_type"] != key.match_type:
        raise PipelineError(f"{where}: {key.name} matches by {key.match_type}, not by {part['match_type']}")
    if key.match_type == "range":
        low, high = fitting("start"), fitting("end")
        if low > high:
            raise PipelineError(f"{where}: {key.name}: the range {low}..{high} is empty")
        return low, high
    mask = full
    if key.match_type == "lpm":
        if not 0 <= part["prefix_length"] <= key.bits:
            raise PipelineError(f"{where}: {key.name}: a prefix of {part['prefix_length']} bits")
        mask = full & ~(full >> part["prefix_length"])
    elif key.match_type in ("ternary", "optional"):
        mask = fitting("mask")
    return fitting("key") & mask & key.mask, mask

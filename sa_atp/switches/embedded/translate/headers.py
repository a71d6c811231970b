"""Translates operations on whole headers: validity, assignment, stacks, unions, and places of varbits.

Fields have the values that simple_switch gives them (behavioral-model: primitives.cpp, stacks.cpp, header_unions.h), also
where P4 leaves them undefined.
"""

from collections.abc import Mapping
from typing import Any

from sa_atp.switches.embedded.errors import Unsupported
from sa_atp.switches.embedded.program import Header
from sa_atp.switches.embedded.translate.part import Part


class Headers(Part):
    # --- names --------------------------------------------------------------------------------------------------------

    def size(self, header: Header) -> str:
        """The size of a header, as source."""
        return (
            f"{header.size_bytes} + {self.translator.varbit_bytes(header)}" if header.varbit else str(header.size_bytes)
        )

    def state(self, header: Header) -> list[str]:
        """The variables with the whole state of a header."""
        names = [self.translator.valid(header.name)]
        if header.varbit:
            names += [self.translator.varbit_at(header), self.translator.varbit_bytes(header)]
        return names + [v for f in header.fields if not f.is_varbit for v in self.translator.variables(header, f)]

    # --- one header ---------------------------------------------------------------------------------------------------

    def made_valid(self, header: Header) -> None:
        self.out(f"{self.translator.valid(header.name)} = True")
        for sibling in self.program.siblings(header.name):
            self.out(f"{self.translator.valid(sibling)} = False")

    def unpack(self, header: str) -> None:
        """Writes the copy of a vector header's values from the packet into its array, if they are still there."""
        packed = self.translator.packed(header)
        with self.out.block(f"if {packed}:"):
            self.out(
                f"load_vector(packets, start + {self.translator.offset(header)}, {self.translator.vector(header)})"
            )
            self.out(f"{packed} = False")

    def set_valid(self, header: Header, where: str) -> None:
        """Writes setValid: a header that was not valid gets zeros."""
        if header.varbit and header.name in self.usage.filled:
            raise Unsupported("setValid of a varbit that may have a length already", where)
        with self.out.block(f"if not {self.translator.valid(header.name)}:"):
            self.made_valid(header)
            if header.varbit:
                self.out(f"{self.translator.varbit_bytes(header)} = 0")
            if self.usage.tracks_length:
                self.out(f"grown += {header.size_bytes}")
            if header.is_vector:
                self.out(f"{self.translator.vector(header.name)}[:] = 0")
                self.out(f"{self.translator.packed(header.name)} = False")
                return
            for field in header.fields:
                for variable in self.translator.variables(header, field) if not field.is_varbit else ():
                    zero = "i64(0)" if field.signed else self.constant(0)
                    self.out(f"{variable} = {zero}")

    def set_invalid(self, header: Header) -> None:
        if self.usage.tracks_length:
            with self.out.block(f"if {self.translator.valid(header.name)}:"):
                self.out(f"grown -= {self.size(header)}")
        self.out(f"{self.translator.valid(header.name)} = False")

    def assign(self, to: Header, origin: Header, where: str) -> None:
        if to.is_vector or origin.is_vector:
            raise Unsupported("assignment of a whole vector header", where)
        with self.out.block(f"if {self.translator.valid(origin.name)}:"):
            for name, source in zip(self.state(to)[1:], self.state(origin)[1:], strict=True):
                self.out(f"{name} = {source}")
            self.made_valid(to)
        with self.out.block("else:"):
            self.out(f"{self.translator.valid(to.name)} = False")

    # --- stacks -------------------------------------------------------------------------------------------------------

    def stack(self, node: Mapping[str, Any], where: str) -> list[Header]:
        if node["type"] != "header_stack":
            raise Unsupported(f"a stack of type {node['type']}", where)
        headers = [self.program.headers[name] for name in self.program.stacks[node["value"]]]
        if headers[0].is_vector:
            raise Unsupported("a stack of vector headers", where)
        return headers

    def shift(self, node: Mapping[str, Any], count: int, where: str) -> None:
        """Writes push_front (count > 0) or pop_front: new headers are invalid."""
        headers = self.stack(node, where)
        size, following = len(headers), self.translator.next_of(node["value"])
        order = range(size - 1, -1, -1) if count > 0 else range(size)
        for i in order:
            if 0 <= i - count < size:
                for name, source in zip(self.state(headers[i]), self.state(headers[i - count]), strict=True):
                    self.out(f"{name} = {source}")
            else:
                self.out(f"{self.translator.valid(headers[i].name)} = False")
        self.out(f"{following} = min(max({following} + {count}, 0), {size})")

    def assign_stack(self, to: Mapping[str, Any], origin: Mapping[str, Any], where: str) -> None:
        for target, source in zip(self.stack(to, where), self.stack(origin, where), strict=True):
            self.assign(target, source, where)
        self.out(f"{self.translator.next_of(to['value'])} = {self.translator.next_of(origin['value'])}")

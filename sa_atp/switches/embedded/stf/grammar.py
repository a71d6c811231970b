"""Parses STF text into statements.

    packet PORT HEX                       a packet arrives
    expect PORT [HEX with *] [$]          a packet leaves; * any digit, $ nothing may follow, no data: any packet
    no_packet                             the last packet before this line causes no packet to leave
    add TABLE [PRIORITY] KEY:VALUE ... ACTION(PARAMETER:VALUE, ...) [= LABEL]
    setdefault TABLE ACTION(...)
    remove all                            all entries of all tables
    wait                                  time passes
    check_counter COUNTER(INDEX or $LABEL) [packets|bytes COMPARISON NUMBER]
    mc_mgrp_create GROUP, mc_node_create COPY PORT ..., mc_node_update NODE PORT ..., mc_node_associate GROUP NODE
    mirroring_add SESSION PORT, mirroring_add_mc SESSION GROUP, mirroring_delete SESSION, mirroring_get SESSION
    counter_read, counter_write, register_read, register_write, register_reset, meter_...

Each line has one statement; `#` starts a comment; names may be quoted; `name$1` means `name[1]`. A value is decimal, 0x
or 0b, with * for digits that do not matter, or VALUE/PREFIX.

Extensions of p4c's format: comments after a packet, VALUE&&&MASK, LOW->HIGH for a range; `no_packet` and
`check_counter` are checked, which p4c's runner for BMv2 ignores.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural

# least and most arguments of commands of a switch's control interface
DIRECT: dict[str, tuple[int, int]] = {
    "mc_mgrp_create": (1, 1),
    "mc_node_create": (2, 512),
    "mc_node_update": (2, 512),
    "mc_node_associate": (2, 2),
    "mirroring_add": (2, 2),
    "mirroring_add_mc": (2, 2),
    "mirroring_delete": (1, 1),
    "mirroring_get": (1, 1),
    "counter_read": (2, 2),
    "counter_write": (4, 4),
    "register_read": (2, 2),
    "register_write": (3, 3),
    "register_reset": (1, 1),
    "meter_get_rates": (2, 2),
    "meter_set_rates": (3, 16),
    "meter_array_set_rates": (2, 16),
}
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")

_PIECE = r'(?:"[^"]*"|[A-Za-z0-9_$*\[\]])'
_TOKEN = re.compile(rf"\s*(?:(?P<word>{_PIECE}(?:\.?{_PIECE})*)|(?P<mark>->|&&&|==|!=|<=|>=|[<>=:,()/]))")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F*]+|0[bB][01*]+|[0-9]+")


class StfError(UserError):
    """A test cannot be read or carried out; the message starts with file and line."""


@dataclass(frozen=True, slots=True)
class StfValue:
    """A value as text; its meaning depends on the width and match kind of its field."""

    text: str
    form: Literal["plain", "prefix", "mask", "range"] = "plain"
    second: str = ""  # prefix length, mask, or upper end

    def __str__(self) -> str:
        return self.text + {"plain": "", "prefix": "/", "mask": "&&&", "range": "->"}[self.form] + self.second


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action and its parameters."""

    action: str
    arguments: tuple[tuple[str, StfValue], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Add:
    line: int
    table: str
    priority: int | None
    match: tuple[tuple[str, StfValue], ...]
    call: ActionCall
    label: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SetDefault:
    line: int
    table: str
    call: ActionCall


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveAll:
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Packet:
    line: int
    port: int
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Expect:
    """An expected packet. digits: hex digits in lower case and *; None: any packet. exact: no byte may follow them."""

    line: int
    port: int
    digits: str | None
    exact: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NoPacket:
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckCounter:
    """The expected value of a counter. index: a number, or the label of an entry. Default: no packets."""

    line: int
    counter: str
    index: int | str
    unit: Literal["packets", "bytes"]
    comparison: str
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Direct:
    line: int
    command: str
    arguments: tuple[str, ...]


Statement = Add | SetDefault | RemoveAll | Packet | Expect | NoPacket | Wait | CheckCounter | Direct


@dataclass(frozen=True, slots=True)
class Test:
    """A parsed test. name: that of its file, for messages."""

    name: str
    statements: tuple[Statement, ...]

    __test__ = False  # not for pytest to collect

    @property
    def ports(self) -> frozenset[int]:
        """Ports that the test names; p4c's runner makes no others."""
        return frozenset(s.port for s in self.statements if isinstance(s, Packet | Expect))


def read(path: Path) -> Test:
    """Reads a test from a file. Raises: StfError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StfError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise StfError(f"{path}: not text") from None
    return parse(text, str(path))


def parse(text: str, name: str = "test") -> Test:
    """Parses a test. Raises: StfError: the message names the line."""
    found: list[Statement] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r'("[^"]*")|#.*', lambda match: match[1] or "", line).strip()
        if not bare:
            continue
        try:
            found.append(_statement(number, bare))
        except UserError as error:
            raise StfError(f"{name}:{number}: {error}") from None
    return Test(name, tuple(found))


def number(text: str) -> int:
    """Parses a number without wildcards. Raises: UserError."""
    if "*" in text or not _NUMBER.fullmatch(text):
        raise UserError(f"{text or 'nothing'}: expected a number like 7, 0x1f or 0b101")
    return int(text, 0) if text[:2].lower() in ("0x", "0b") else int(text)


# --- one line ---------------------------------------------------------------------------------------------------------


def _statement(line: int, text: str) -> Statement:
    keyword, _, rest = text.partition(" ") if " " in text else text.partition("\t")
    keyword, rest = keyword.lower(), rest.strip()
    if keyword == "packet":
        return _packet(line, rest)
    if keyword == "expect":
        return _expect(line, rest)
    tokens = _Tokens(rest)
    parts: dict[str, Callable[[int, _Tokens], Statement]] = {
        "add": _add,
        "setdefault": lambda at, t: SetDefault(line=at, table=t.name("a table"), call=_call(t)),
        "remove": _remove,
        "no_packet": lambda at, _: NoPacket(line=at),
        "wait": lambda at, _: Wait(line=at),
        "check_counter": _check_counter,
    }
    if keyword in DIRECT:
        found: Statement = _direct(line, keyword, tokens)
    elif keyword in parts:
        found = parts[keyword](line, tokens)
    else:
        raise UserError(f"{keyword}: expected one of {', '.join(sorted([*parts, 'packet', 'expect', *DIRECT]))}")
    tokens.end()
    return found


class _Tokens:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []  # (kind, text)
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise UserError(f"{text[at:].strip()[:20]!r}: not understood")
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind].replace('"', "")))
            at = match.end()
        self._at = 0

    def peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def take(self) -> str:
        found = self.peek()
        self._at += 1
        return found

    def accept(self, mark: str) -> bool:
        if self.peek() != mark:
            return False
        self._at += 1
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise UserError(f"expected {mark!r} {self._here()}")

    def name(self, what: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != "word":
            raise UserError(f"expected {what} {self._here()}")
        return re.sub(r"\$([0-9]+)", r"[\1]", self.take())

    def number(self) -> int:
        return number(self.take())

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise UserError(f"nothing expected {self._here()}")

    def _here(self) -> str:
        return f"instead of {self.peek()!r}" if self._at < len(self._tokens) else "at the end of the line"


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 511:
        raise UserError(f"port {text or 'missing'}: expected 0 to 511")
    return int(text)


def _packet(line: int, rest: str) -> Packet:
    port, *data = rest.split() or [""]
    try:
        return Packet(line=line, port=_port(port), data=bytes.fromhex("".join(data)))
    except ValueError:
        raise UserError("packet: expected hex digits, two for each byte") from None


def _expect(line: int, rest: str) -> Expect:
    port, *data = rest.split() or [""]
    digits = "".join(data).lower()
    exact = digits.endswith("$")
    digits = digits.removesuffix("$")
    if not re.fullmatch(r"[0-9a-f*]*", digits):
        raise UserError("expect: expected hex digits or *, and $ only at the end")
    if exact and len(digits) % 2:
        raise UserError("expect: half a byte before $: two digits for each byte")
    return Expect(line=line, port=_port(port), digits=digits if digits or exact else None, exact=exact)


def _add(line: int, tokens: _Tokens) -> Add:
    table = tokens.name("a table")
    priority = None
    if tokens.peek().isdecimal() and tokens.peek(1) != ":":
        priority = tokens.number()
    match = []
    while tokens.peek(1) == ":":
        name = tokens.name("a key")
        tokens.expect(":")
        match.append((name, _value(tokens)))
    call = _call(tokens)
    label = tokens.name("a label") if tokens.accept("=") else None
    return Add(line=line, table=table, priority=priority, match=tuple(match), call=call, label=label)


def _remove(line: int, tokens: _Tokens) -> RemoveAll:
    if tokens.take().lower() != "all":
        raise UserError("remove: expected `remove all`")
    return RemoveAll(line=line)


def _value(tokens: _Tokens) -> StfValue:
    text = tokens.take()
    if not _NUMBER.fullmatch(text):
        raise UserError(f"{text or 'nothing'}: expected a value like 7, 0x1f, 0b1**1 or 0x0a000000/8")
    for mark, form in (("/", "prefix"), ("&&&", "mask"), ("->", "range")):
        if tokens.accept(mark):
            return StfValue(text, form, str(tokens.number()))  # type: ignore[arg-type]
    return StfValue(text)


def _call(tokens: _Tokens) -> ActionCall:
    action = tokens.name("an action")
    tokens.expect("(")
    arguments: list[tuple[str, StfValue]] = []
    while not tokens.accept(")"):
        if arguments:
            tokens.expect(",")
        name = tokens.name("a parameter")
        tokens.expect(":")
        arguments.append((name, _value(tokens)))
    return ActionCall(action, tuple(arguments))


def _check_counter(line: int, tokens: _Tokens) -> CheckCounter:
    counter = tokens.name("a counter")
    tokens.expect("(")
    text = tokens.take()
    index: int | str = text.removeprefix("$") if not text[:1].isdecimal() else number(text)
    tokens.expect(")")
    unit: Literal["packets", "bytes"] = "packets"
    comparison, value = "==", 0
    if tokens.peek():
        word = tokens.take().lower()
        if word not in ("packets", "bytes"):
            raise UserError(f"{word}: expected packets or bytes")
        unit = "bytes" if word == "bytes" else "packets"
        comparison = tokens.take()
        if comparison not in COMPARISONS:
            raise UserError(f"{comparison or 'nothing'}: expected one of {' '.join(COMPARISONS)}")
        value = tokens.number()
    return CheckCounter(line=line, counter=counter, index=index, unit=unit, comparison=comparison, number=value)


def _direct(line: int, command: str, tokens: _Tokens) -> Direct:
    least, most = DIRECT[command]
    arguments: list[str] = []
    while tokens.peek():
        text = tokens.name("a name or number")
        while tokens.accept(":"):  # meter rates are pairs RATE:BURST
            text += ":" + tokens.name("a burst size")
        arguments.append(text)
    if not least <= len(arguments) <= most:
        raise UserError(f"{command}: {plural(len(arguments), 'argument')}, expected {_between(least, most)}")
    names = command.startswith(("counter", "register", "meter"))  # these name an object first
    for text in arguments[int(names) :]:
        for part in text.split(":"):
            number(part.split(".")[0])
    return Direct(line=line, command=command, arguments=tuple(arguments))


def _between(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def numbers(arguments: Sequence[str]) -> list[int]:
    """The arguments of a direct command whose arguments are all numbers."""
    return [number(text) for text in arguments]

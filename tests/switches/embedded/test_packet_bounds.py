"""Translated programs read no byte behind the packet.

Every packet of the packet tests, cut short anywhere and with bytes changed, goes through its program twice: as plain Python
whose operations look at every index, and compiled, in memory that ends with the packet and with the room for what comes
out, behind which nobody may read (a byte too far ends the process). The forms of a program that no source here has are made
from the compiled one.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.generate import FOLDER
from hypothesis import given, settings
from hypothesis import strategies as st
from net.checked import checked_operations
from net.guarded import Guarded

from sa_atp.basics.code_cache import executed
from sa_atp.basics.folders import cache_folder
from sa_atp.switches import artefacts
from sa_atp.switches.embedded.call_frame import PLACES
from sa_atp.switches.embedded.errors import Unsupported
from sa_atp.switches.embedded.pipeline import NOTHING_WAITS, PORTS, Pipeline
from sa_atp.switches.embedded.stf import grammar, runner
from sa_atp.switches.embedded.stf.embedded import EmbeddedTarget
from sa_atp.switches.embedded.stf.names import ProgramNames
from sa_atp.switches.embedded.translate import checksums
from sa_atp.switches.embedded.translate.deparsing import HEAD_BYTES, HEAD_ROW

P4 = Path(__file__).resolve().parents[2] / "p4"
LAYERS = json.loads((P4 / "layers.json").read_text())
MOST = 4096  # bytes of a packet here
MOST_COPIES = 16


class Bounded:
    """A pipeline's program with memory that ends where the packet and its output room end."""

    def __init__(self, pipeline: Pipeline, *, compiled: bool) -> None:
        self.pipeline = pipeline
        self.compiled = compiled
        source = pipeline.translation.source
        if compiled:
            self.process = pipeline.run
        else:
            namespace = {**checked_operations(), **checksums.crc_tables()}
            process = executed("checked_pipeline", [("pipeline.py", source)], None, namespace)["process"]
            self.process = lambda frame: process(frame.handle)
        self.frame = pipeline.new_frame()
        self.packet = Guarded(MOST, np.uint8)
        room = MOST_COPIES * (MOST + pipeline.most_added)
        self.out, self.heads = Guarded(room, np.uint8), Guarded(MOST_COPIES * HEAD_ROW, np.uint8)
        self.kept, self.no_heads = Guarded(HEAD_ROW, np.uint8), Guarded(0, np.uint8)
        self.columns = {
            name: np.zeros(MOST_COPIES, np.int64) for name in ("out_starts", "out_lengths", "out_ports", "out_sources")
        }
        self.depths = np.append(NOTHING_WAITS, -1)[:PORTS]

    def __call__(self, packet: bytes, port: int, *, apart: bool) -> list[tuple[int, bytes]]:
        """Processes packets. Args: apart: whether heads are stored apart, as for the loop between ports."""
        frame, pipeline, copies = self.frame, self.pipeline, self.pipeline.most_copies
        assert copies <= MOST_COPIES
        pipeline.bring_up_to_date(frame)
        data = self.packet.array[MOST - len(packet) :]
        data[:] = np.frombuffer(packet, np.uint8)
        room = len(packet) + pipeline.most_added
        out = self.out.array[len(self.out.array) - copies * room :]
        numbers = {"first": 0, "last": 1, "now": 5, "apart": HEAD_BYTES if apart else 0, "row_bytes": room}
        for name, value in numbers.items():
            frame.number(PLACES[name], value)
        arrays = {
            "packets": data, "starts": np.zeros(1, np.int64), "lengths": np.array([len(packet)]),
            "ports": np.array([port]), "heads_in": self.no_heads.array, "head_of": np.array([-1]),
            "depths": self.depths, "out": out, "heads": self.heads.array, "kept": self.kept.array,
            **{name: column[:copies] for name, column in self.columns.items()},
        }  # fmt: skip
        for name, array in arrays.items():
            frame.array(PLACES[name], array)
        self.process(frame)
        assert frame.result(PLACES["first"]) == 1
        found = []
        for i in range(frame.result(PLACES["last"])):
            start, length = (int(self.columns[name][i]) for name in ("out_starts", "out_lengths"))
            head = self.heads.array[i * HEAD_ROW + 16 :][: min(length, HEAD_BYTES)].tobytes() if apart else b""
            body = max(length - HEAD_BYTES, 0) if apart else length
            assert body == 0 or 0 <= start <= len(out) - body
            found.append((int(self.columns["out_ports"][i]), head + out[start : start + body].tobytes()))
        for guarded in (self.packet, self.out, self.heads, self.kept):
            guarded.check()
        return found


class Bounds(EmbeddedTarget):
    """A target that processes every packet of a test in bounded memory, truncated to all lengths and with changed bytes."""

    def __init__(self, pipeline: Pipeline, *, compiled: bool, tries: int) -> None:
        super().__init__(pipeline)
        self.bounded = Bounded(pipeline, compiled=compiled)
        self.rng = np.random.default_rng(1)
        self.tries = tries
        self.sent = 0

    def send(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        for each in self._variants(packet):
            self.bounded(each, port, apart=bool(self.sent % 2))
            self.sent += 1
        return super().send(port, packet)

    def _variants(self, packet: bytes) -> Iterator[bytes]:
        lengths: Sequence[int] = range(len(packet) + 1)
        if len(lengths) > self.tries:
            lengths = sorted({0, *self.rng.integers(0, 64, self.tries // 2), *self.rng.integers(0, len(packet), 8)})
        for length in lengths:
            yield packet[:length]
            changed = bytearray(packet[:length])
            for _ in range(3):
                if length:
                    changed[self.rng.integers(min(length, 64))] = (0, 1, 2, 3, 255, self.rng.integers(256))[
                        self.rng.integers(6)
                    ]
            yield bytes(changed)


def through(json_path: Path, stf: Path, *, compiled: bool, tries: int = 64) -> int:
    """Runs a packet test within bounds. Returns: the number of packets."""
    pipeline = Pipeline.from_file(json_path, compiled=compiled, cache=cache_folder() if compiled else None)
    target = Bounds(pipeline, compiled=compiled, tries=tries)
    runner.run(grammar.read(stf), ProgramNames.from_file(json_path), target)
    return target.sent


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", [path.stem for path in sorted(P4.glob("*.stf"))])
def test_small_programs_stay_within_the_packet(name: str, compiled: bool) -> None:
    assert through(P4 / f"{name}.json", P4 / f"{name}.stf", compiled=compiled) > 50


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_the_aggregation_program_stays_within_the_packet(compiled: bool) -> None:
    path = artefacts.program(64).json_path
    assert through(path, FOLDER / "aggregate.stf", compiled=compiled, tries=200 if compiled else 12) > 100


# --- a select that looks ahead ------------------------------------------------------------------------------------------


def looking_ahead(first: int, bits: int, *, as_key: bool) -> dict[str, Any]:
    """tests/p4/layers.p4 whose state `form` selects by these bits ahead, as the key itself or by way of a field.

    p4c writes the second; older releases, and BMv2's own documents, have the first.
    """
    made: dict[str, Any] = copy.deepcopy(LAYERS)
    (state,) = (s for s in made["parsers"][0]["parse_states"] if s["name"] == "form")
    ahead = {"type": "lookahead", "value": [first, bits]}
    if as_key:
        state.update(parser_ops=[], transition_key=[ahead])
    else:
        made["header_types"].append({"name": "ahead_t", "id": 90, "fields": [["value", bits, False]]})
        made["headers"].append({"name": "ahead", "id": 90, "header_type": "ahead_t", "metadata": True, "pi_omit": True})
        found = {"type": "field", "value": ["ahead", "value"]}
        state.update(parser_ops=[{"op": "set", "parameters": [found, ahead]}], transition_key=[found])
    for transition in state["transitions"]:
        if transition["type"] == "hexstr":
            width = (bits + 7) // 8 * 8
            transition["mask"] = hex((1 << width) - 1 & 0x7)
    return made


def pipeline_of(made: dict[str, Any], *, compiled: bool = False) -> Pipeline:
    return Pipeline.from_config(
        json.dumps(made).encode(), compiled=compiled, cache=cache_folder() if compiled else None
    )


AHEAD = ((0, 8), (8, 8), (4, 12), (3, 1), (20, 60))
BY_KEY = {each: pipeline_of(looking_ahead(*each, as_key=True)) for each in AHEAD}
BY_FIELD = {each: pipeline_of(looking_ahead(*each, as_key=False)) for each in AHEAD}
orders = st.tuples(st.integers(0, 11), st.integers(0, 1), st.integers(0, 1)).map(bytes)
packets = st.builds(bytes.__add__, orders, st.lists(st.integers(0, 8) | st.integers(0, 255), max_size=14).map(bytes))


@settings(max_examples=300)
@given(st.sampled_from(AHEAD), packets, st.binary(min_size=16, max_size=16))
def test_a_key_ahead_is_a_field_that_was_set_from_there(where: tuple[int, int], packet: bytes, behind: bytes) -> None:
    """Also at the end of the packet, where both raise PacketTooShort, whatever lies behind it."""
    data = np.frombuffer(packet + behind, np.uint8).reshape(1, -1)
    out = BY_KEY[where].process(data, np.array([len(packet)]), np.array([1]), 0)
    assert [(1, out.packet(i)) for i in range(len(out))] == BY_FIELD[where].process_one(packet, 1, 0)


def test_bytes_behind_a_packet_decide_nothing() -> None:
    """A packet of an order alone is too short for the look ahead (answer 0xe3), not of the form that lies behind it."""
    for behind in range(6):
        data = np.full((1, 64), behind, np.uint8)
        data[0, :3] = 7, 0, 0
        out = BY_KEY[0, 8].process(data, np.array([3]), np.array([1]), 0)
        assert [out.packet(i) for i in range(len(out))] == [bytes([7, 0, 0xE3])]


# --- other forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_key_ahead_and_headers_that_are_emitted_again_stay_within_bounds(tmp_path: Path, compiled: bool) -> None:
    made = looking_ahead(20, 60, as_key=True)
    made["deparsers"][0]["order"] *= 3
    path = tmp_path / "emitted.json"
    path.write_text(json.dumps(made))
    assert through(path, P4 / "layers.stf", compiled=compiled) > 50
    assert pipeline_of(made).process_one(b"\0\0\0", 1, 0) == [(1, bytes([0, 0, 0xE3]) * 3)]


def test_a_varbit_without_a_length_is_refused() -> None:
    made = copy.deepcopy(LAYERS)
    for state in made["parsers"][0]["parse_states"]:
        for operation in state["parser_ops"]:
            if operation["op"] == "extract_VL":
                operation.update(op="extract", parameters=operation["parameters"][:1])
    with pytest.raises(Unsupported, match=r"varbit without its length \(options\)"):
        pipeline_of(made)


def test_port_numbers_beyond_those_of_the_switch_are_refused() -> None:
    made = copy.deepcopy(LAYERS)
    for kind in made["header_types"]:
        for each in kind["fields"]:
            if each[0] == "egress_spec":
                each[1] = 16
    with pytest.raises(Unsupported, match="port numbers of 16 bits"):
        pipeline_of(made)

"""Compiled programs for tests, and servers to push them to."""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sa_atp.switches import artefacts
from sa_atp.switches.control.client import parse_p4info

from .server import TofinoServer

Folder = Callable[..., Path]
Serve = Callable[..., TofinoServer]


def bson(fields: dict[str, str | int]) -> bytes:
    """The head of a tofino.bin, like the assembler's."""
    body = b""
    for name, value in fields.items():
        if isinstance(value, int):
            body += b"\x12" + name.encode() + b"\0" + struct.pack("<q", value)
        else:
            body += b"\x02" + name.encode() + b"\0" + struct.pack("<i", len(value) + 1) + value.encode() + b"\0"
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def binary(target: str = "tofino", program: str = "sa_atp") -> bytes:
    head = bson({"asm_version": "1", "program_name": program, "target": target, "stages": 12})
    return b"\0\0\0H" + head + bytes(range(256)) * 8


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Makes a small folder like the output of p4c's Tofino back end, with the P4Info of the program for BMv2."""

    def make(target: str = "tofino", program: str = "sa_atp") -> Path:
        made = tmp_path / f"{program}.{target}"
        (made / "pipe").mkdir(parents=True)
        p4info = artefacts.program().p4info()
        tables = [{"name": f"pipe.{t.preamble.name}", "id": t.preamble.id} for t in parse_p4info(p4info).tables]
        (made / f"{program}.p4info.txtpb").write_text(p4info)
        (made / "bfrt.json").write_text(json.dumps({"schema_version": "1.0.0", "tables": tables}))
        context: dict[str, Any] = {"program_name": program, "target": target, "tables": []}
        (made / "pipe" / "context.json").write_text(json.dumps(context))
        (made / "pipe" / f"{target}.bin").write_bytes(binary(target, program))
        pipeline = {"p4_pipeline_name": "pipe", "context": "pipe/context.json", "pipe_scope": [0, 1, 2, 3]}
        conf = {"p4_devices": [{"p4_programs": [{"program-name": program, "p4_pipelines": [pipeline]}]}]}
        (made / f"{program}.conf").write_text(json.dumps(conf))
        return made

    return make


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, which end with the test."""
    with ExitStack() as running:
        yield lambda **options: running.enter_context(TofinoServer(**options))

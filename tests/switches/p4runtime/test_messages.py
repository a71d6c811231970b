"""Message classes from descriptors: equal to those of the package `p4runtime`, and imported only if needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"


def python(*arguments: str, **variables: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env={**inherited, **variables}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.needs("p4runtime_sh")
def test_the_descriptions_are_those_of_the_package() -> None:
    python("-m", "tests.switches.p4runtime.descriptors", "--check")


HERE = """
from sa_atp.switches.p4runtime.messages import any_pb2, p4runtime_pb2 as ours, status_pb2
def written():
    update = ours.Update(type=ours.Update.MODIFY)
    update.entity.table_entry.match.add(field_id=3).lpm.value = bytes([10, 0])
    return update.SerializeToString()
"""
PACKAGE = "from p4.v1 import p4runtime_pb2 as theirs\n"
SAME = """
assert theirs.Update is not ours.Update
read = theirs.Update.FromString(written())
assert (read.type, read.entity.table_entry.match[0].lpm.value) == (theirs.Update.MODIFY, bytes([10, 0]))
assert ours.Update.FromString(read.SerializeToString()).SerializeToString() == written()
"""


@pytest.mark.needs("p4runtime_sh")
@pytest.mark.parametrize("order", [HERE + PACKAGE, PACKAGE + HERE], ids=["ours first", "the package first"])
def test_the_package_may_be_imported_beside_them(order: str) -> None:
    python("-c", order + SAME, **{VARIABLE: "python"})


@pytest.mark.parametrize("variables", [{}, {VARIABLE: "python"}], ids=["as it is", "protobuf in Python"])
def test_a_message_within_a_message_survives(variables: dict[str, str]) -> None:
    """Any has methods that protobuf adds to a class of that name, in every implementation that it has."""
    code = HERE + (
        "packed = any_pb2.Any(); packed.Pack(ours.Error(message='no', canonical_code=3))\n"
        "status = status_pb2.Status(code=2); status.details.append(packed)\n"
        "error = ours.Error(); assert status_pb2.Status.FromString(status.SerializeToString()).details[0].Unpack(error)\n"
        "print(error.message, error.canonical_code, written().hex())"
    )
    # bytes as the .proto file says: Update 1, 2; Entity 2; TableEntry 2; FieldMatch 1, 4; LPM 1
    assert python("-c", code, **variables) == "no 3 0802120c120a1208080322040a020a00\n"


def test_training_does_not_import_protobuf() -> None:
    """The version of protobuf, and its implementation, concern only switches and controllers."""
    code = (
        "import sys, os, sa_atp.net.communicator, sa_atp.lab.backends.worker_process, sa_atp.lab.parameters.client\n"
        "try: import sa_atp.ddp\n"
        "except Exception: pass  # PyTorch is not everywhere\n"
        f"assert {VARIABLE!r} not in os.environ\n"
        "print({'google.protobuf', 'p4', 'sa_atp.switches.p4runtime.messages'} & sys.modules.keys())"
    )
    assert python("-c", code) == "set()\n"


def test_p4runtime_does_not_change_protobuf_for_the_process() -> None:
    parts = "sa_atp.switches.control.client, sa_atp.switches.embedded.p4runtime_server.server"
    code = f"import os, {parts}; print({VARIABLE!r} in os.environ)"
    assert python("-c", code) == "False\n"

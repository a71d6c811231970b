"""Reading compiled programs, and packing them."""

import hashlib
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.switches import artefacts
from sa_atp.switches.control import tofino

from .conftest import Folder, binary
from .server import BfPipelineConfig, Loaded, unpack_pi, unpack_stratum

BLOB = st.binary(max_size=400)
NAME = st.text(min_size=1, max_size=200)
OTHER_P4INFO = artefacts.program().p4info().replace("SwitchIngress", "OtherIngress").encode()
BINARY, CONTEXT = "pipe/tofino.bin", "pipe/context.json"


def test_pi_as_stratum_converts_it() -> None:
    """The bytes in Stratum's own test of its conversion (bf_pipeline_utils_test.cc)."""
    packed = tofino.pack_pi("prog1", b"<raw bin>", b"{json: true}")
    assert packed == b"\x05\0\0\0prog1\x09\0\0\0<raw bin>\x0c\0\0\0{json: true}"


@given(name=NAME, bfrt=BLOB, context=BLOB, content=BLOB)
def test_stratum_as_protobuf_writes_it(name: str, bfrt: bytes, context: bytes, content: bytes) -> None:
    config = BfPipelineConfig(p4_name=name, bfruntime_info=bfrt)
    config.profiles.add(profile_name="pipe", context=context, binary=content, pipe_scope=[0, 1, 2, 3])
    packed = tofino.pack_stratum(name, bfrt, "pipe", context, content, range(4))
    read = BfPipelineConfig()
    read.ParseFromString(packed)
    assert read == config


@given(name=NAME, context=BLOB, content=BLOB)
def test_pi_comes_apart_again(name: str, context: bytes, content: bytes) -> None:
    assert unpack_pi(tofino.pack_pi(name, content, context)) == Loaded(name, None, context, content, None)


@pytest.mark.parametrize("chip", ["tofino", "tofino2"])
def test_reading_the_compilers_output(folder: Folder, chip: str) -> None:
    made = folder(chip)
    program = tofino.from_folder(made)
    assert (program.name, program.pipe, program.chip, program.lanes) == ("sa_atp", "pipe", chip, None)
    assert unpack_stratum(program.device_config()) == Loaded(
        "sa_atp",
        (made / "bfrt.json").read_bytes(),
        (made / "pipe" / "context.json").read_bytes(),
        binary(chip),
        (0, 1, 2, 3),
    )
    legacy = tofino.from_folder(made, "pi")
    assert unpack_pi(legacy.device_config()).binary == binary(chip)
    assert legacy.cookie != program.cookie


def test_as_the_repository_keeps_it(folder: Folder) -> None:
    """Committed programs: compressed, in one folder, with checksums of the contents."""
    made = folder()
    whole = tofino.from_folder(made)
    files = {}
    for path in (made / "bfrt.json", made / "pipe" / "context.json", made / "pipe" / "tofino.bin"):
        content = path.read_bytes()
        (made / f"{path.name}.xz").write_bytes(lzma.compress(content))
        files[path.name] = {"sha256": hashlib.sha256(content).hexdigest()}
        path.unlink()
    (made / "sa_atp.conf").unlink()
    (made / "origin.json").write_text(json.dumps({"lanes": 32, "files": files}))
    kept = tofino.from_folder(made)
    assert kept.lanes == 32
    assert kept.device_config() == whole.device_config()

    (made / "tofino.bin.xz").write_bytes(lzma.compress(binary() + b"\0"))
    with pytest.raises(UserError, match=r"tofino\.bin\.xz: its checksum is not the one in origin\.json"):
        tofino.from_folder(made)
    (made / "tofino.bin.xz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"tofino\.bin\.xz: "):
        tofino.from_folder(made)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (BINARY, None, r"expected tofino\.bin of p4c's Tofino back end"),
        (CONTEXT, None, r"expected context\.json of p4c's Tofino back end"),
        (
            BINARY,
            b'{"program": "sa_atp"}',
            r"tofino\.bin: not a configuration of a Tofino \(it does not begin with a header\)",
        ),
        (BINARY, binary()[:20], r"not a configuration of a Tofino \(its header is cut off\)"),
        (
            BINARY,
            binary("tofino2"),
            r"context\.json has target 'tofino', tofino\.bin has 'tofino2': they are not of one compilation",
        ),
        (BINARY, binary("tofino9"), r"it is for 'tofino9'; expected one of tofino, tofino2"),
        (BINARY, binary(program="router"), r"context\.json has program_name 'sa_atp', tofino\.bin has 'router'"),
        (
            "sa_atp.p4info.txtpb",
            artefacts.program().p4info().replace("SwitchIngress", "OtherIngress").encode(),
            r"the P4Info has the table OtherIngress\.\S+, bfrt\.json has not",
        ),
        ("router.p4info.txtpb", b"", r"expected one P4Info \(\*\.p4info\.txtpb\), found 2"),
        (CONTEXT, b"{", r"context\.json: not JSON"),
        ("bfrt.json", b"[]", r"bfrt\.json: expected an object"),
        ("sa_atp.conf", b'{"p4_devices": []}', r"sa_atp\.conf: expected p4_devices with p4_programs with p4_pipelines"),
    ],
)
def test_files_that_do_not_belong_together(folder: Folder, name: str, content: bytes | None, complaint: str) -> None:
    """Args: content: of a file, in place of what there is; None: it is not there."""
    made = folder()
    if content is None:
        (made / name).unlink()
    else:
        (made / name).write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        tofino.from_folder(made)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing: there is no such folder"):
        tofino.from_folder(tmp_path / "nothing")

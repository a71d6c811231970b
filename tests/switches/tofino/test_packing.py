"""Reading compiled programs, and packing them."""

import hashlib
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.switches.control import tofino

from .conftest import Folder, binary
from .server import BfPipelineConfig, Loaded, unpack_pi, unpack_stratum

BLOB = st.binary(max_size=400)
NAME = st.text(min_size=1, max_size=200)


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


def _no_binary(made: Path) -> None:
    (made / "pipe" / "tofino.bin").unlink()


def _no_context(made: Path) -> None:
    (made / "pipe" / "context.json").unlink()


def _binary_of_bmv2(made: Path) -> None:
    (made / "pipe" / "tofino.bin").write_text('{"program": "sa_atp"}')


def _cut_binary(made: Path) -> None:
    (made / "pipe" / "tofino.bin").write_bytes(binary()[:20])


def _other_chip(made: Path) -> None:
    (made / "pipe" / "tofino.bin").write_bytes(binary("tofino2"))


def _unknown_chip(made: Path) -> None:
    (made / "pipe" / "tofino.bin").write_bytes(binary("tofino9"))


def _other_program(made: Path) -> None:
    (made / "pipe" / "tofino.bin").write_bytes(binary(program="router"))


def _other_p4info(made: Path) -> None:
    text = (made / "sa_atp.p4info.txtpb").read_text()
    (made / "sa_atp.p4info.txtpb").write_text(text.replace("SwitchIngress", "OtherIngress"))


def _two_p4infos(made: Path) -> None:
    (made / "router.p4info.txtpb").write_text("")


def _broken_context(made: Path) -> None:
    (made / "pipe" / "context.json").write_text("{")


def _list_for_bfrt(made: Path) -> None:
    (made / "bfrt.json").write_text("[]")


def _empty_conf(made: Path) -> None:
    (made / "sa_atp.conf").write_text('{"p4_devices": []}')


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_no_binary, r"expected tofino\.bin of p4c's Tofino back end"),
        (_no_context, r"expected context\.json of p4c's Tofino back end"),
        (_binary_of_bmv2, r"tofino\.bin: not a configuration of a Tofino \(it does not begin with a header\)"),
        (_cut_binary, r"not a configuration of a Tofino \(its header is cut off\)"),
        (_other_chip, r"context\.json has target 'tofino', tofino\.bin has 'tofino2': they are not of one compilation"),
        (_unknown_chip, r"it is for 'tofino9'; expected one of tofino, tofino2"),
        (_other_program, r"context\.json has program_name 'sa_atp', tofino\.bin has 'router'"),
        (_other_p4info, r"the P4Info has the table OtherIngress\.\S+, bfrt\.json has not"),
        (_two_p4infos, r"expected one P4Info \(\*\.p4info\.txtpb\), found 2"),
        (_broken_context, r"context\.json: not JSON"),
        (_list_for_bfrt, r"bfrt\.json: expected an object"),
        (_empty_conf, r"sa_atp\.conf: expected p4_devices with p4_programs with p4_pipelines"),
    ],
)
def test_files_that_do_not_belong_together(folder: Folder, spoil: object, complaint: str) -> None:
    made = folder()
    assert callable(spoil)
    spoil(made)
    with pytest.raises(UserError, match=complaint) as caught:
        tofino.from_folder(made)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing: there is no such folder"):
        tofino.from_folder(tmp_path / "nothing")

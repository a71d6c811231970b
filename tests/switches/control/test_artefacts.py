"""Finding the compiled programs."""

import lzma
from pathlib import Path

import pytest

from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.protocol.packets import spec
from sa_atp.switches import artefacts


@pytest.mark.parametrize("lanes", spec.LANE_BUILDS)
def test_every_build_is_there(lanes: int) -> None:
    program = artefacts.program(lanes)
    assert program.lanes == lanes
    assert b'"pipelines"' in program.device_config()
    assert program.p4info().startswith("# proto-file: p4/config/v1/p4info.proto")


@pytest.mark.parametrize(("lanes", "contributions"), spec.WIDE_BUILDS)
def test_every_wide_build_is_there(lanes: int, contributions: int) -> None:
    program = artefacts.program(lanes, contributions)
    assert (program.lanes, program.contributions) == (lanes, contributions)
    assert artefacts.program(lanes).contributions == 64


@pytest.mark.parametrize(
    ("lanes", "needed", "found"), [(256, 1, 64), (256, 64, 64), (256, 65, 512), (256, 512, 512), (64, 64, 64)]
)
def test_the_smallest_build_that_has_so_many_contributions(lanes: int, needed: int, found: int) -> None:
    assert artefacts.contributions_for(lanes, needed) == artefacts.wide_enough(lanes, needed) == found
    assert artefacts.program(lanes, found).contributions == found


def test_more_contributions_than_any_build_has() -> None:
    assert artefacts.contributions_for(64, 65) is artefacts.contributions_for(256, 513) is None
    with pytest.raises(UserError, match=r"--contributions 65: expected 1 to 64 with 64 lanes \(512 with 256\)$"):
        artefacts.wide_enough(64, 65)
    with pytest.raises(UserError, match=r"--contributions 513: expected 1 to 512 with 256 lanes$"):
        artefacts.wide_enough(256, 513)
    with pytest.raises(UserError, match="--contributions 0: expected 1 to 64"):
        artefacts.wide_enough(64, 0)
    with pytest.raises(UserError, match="lanes 64 with 512 contributions: there is no such build"):
        artefacts.program(64, 512)


def test_a_build_that_is_not_there() -> None:
    with pytest.raises(
        UserError,
        match="lanes 65: there is no such build of the P4 program; there is 32, 64, 256, 2048 and 256 with 512",
    ):
        artefacts.program(65)


def test_a_wheel_has_its_own_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = tmp_path / "_data" / "p4src" / "compiled"
    (packaged / "v1model-8").mkdir(parents=True)
    (packaged / "v1model-8" / "sa_atp.json").write_text("{}")
    (packaged / "v1model-8" / "sa_atp.p4info.txtpb").write_text("")
    monkeypatch.setattr(artefacts, "_PLACES", (packaged, tmp_path / "p4src"))
    assert artefacts.program(8).json_path.parent == packaged / "v1model-8"
    monkeypatch.setattr(artefacts, "_PLACES", (tmp_path / "nothing",))
    with pytest.raises(MissingPartError, match="run scripts/compile"):
        artefacts.program(8)


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected one P4Info \(\*\.p4info\.txtpb\), found 0"):
        artefacts.from_folder(tmp_path)
    (tmp_path / "mine.p4info.txtpb").write_text("")
    with pytest.raises(UserError, match=r"expected the BMv2 JSON mine\.json beside mine\.p4info\.txtpb"):
        artefacts.from_folder(tmp_path)
    (tmp_path / "mine.json").write_text("{}")
    assert artefacts.from_folder(tmp_path).lanes is None
    (tmp_path / "mine.p4info.txtpb.xz").write_bytes(lzma.compress(b"tables {}"))
    with pytest.raises(UserError, match=r"expected one P4Info .* found 2"):
        artefacts.from_folder(tmp_path)
    (tmp_path / "mine.p4info.txtpb").unlink()
    program = artefacts.from_folder(tmp_path)
    assert program.p4info() == "tables {}"
    program.p4info_path.write_bytes(program.p4info_path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"mine\.p4info\.txtpb\.xz: not compressed by xz: "):
        program.p4info()

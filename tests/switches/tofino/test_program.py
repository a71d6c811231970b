"""The committed programs for Tofino: whole, of one compilation, and with tables that the control plane can fill."""

import json
import re
import subprocess
import tomllib
from collections.abc import Collection
from pathlib import Path

import pytest

from sa_atp.protocol.packets import spec
from sa_atp.switches import artefacts
from sa_atp.switches.control import job_entries, tofino
from sa_atp.switches.control.client import parse_p4info
from sa_atp.switches.control.jobspec import JobSpec, Member
from sa_atp.switches.p4runtime.codec import encode
from sa_atp.switches.p4runtime.schema import from_p4info

ROOT = Path(__file__).resolve().parents[3]
P4SRC = ROOT / "p4src"
CHIPS = sorted({build["chip"] for build in tomllib.loads((P4SRC / "wire.toml").read_text())["tofino"].values()})
STAGES = {"tofino": 12, "tofino2": 20}


@pytest.fixture(params=CHIPS)
def program(request: pytest.FixtureRequest) -> tofino.TofinoProgram:
    return tofino.from_folder(artefacts.tofino_folder(request.param))


def test_a_committed_program_fits_its_chip(program: tofino.TofinoProgram) -> None:
    took = json.loads((program.folder / "origin.json").read_text())["resources"]
    assert took["stages"] <= STAGES[program.chip]
    assert program.lanes is not None
    # eight arrays of state, of which one has two words, and one array a lane
    assert took["stateful_alus"] == 8 + program.lanes
    assert tofino.binary_header(program.binary, program.folder)["program_name"] == "sa_atp"


def test_the_tofino_program_has_the_tables_of_the_v1model_program(program: tofino.TofinoProgram) -> None:
    """The same control plane serves both. Bare results are v1model's alone (docs/tofino.md)."""

    def shape(text: str, without: Collection[str] = ()) -> dict[str, object]:
        info = parse_p4info(text)
        actions = {a.preamble.id: (a.preamble.alias, [(p.name, p.bitwidth) for p in a.params]) for a in info.actions}
        return {
            t.preamble.alias: (
                [(m.name, m.bitwidth, m.match_type) for m in t.match_fields],
                sorted(actions[r.id] for r in t.action_refs if actions[r.id][0] not in ("NoAction", *without)),
            )
            for t in info.tables
            if t.preamble.alias in {*job_entries.JOB_TABLES, "bridge", "threshold"}
        }

    assert shape(program.p4info()) == shape(artefacts.program().p4info(), without=["send_bare"])


def test_the_entries_of_a_job_fit_its_tables(program: tofino.TofinoProgram) -> None:
    hosts = [Member(ip=f"10.0.0.{i}", udp_port=5000 + i, mac=f"02:00:00:00:00:{i:02x}", switch_port=4 * i, rank=i)
             for i in range(1, 4)]  # fmt: skip
    server = Member(ip="10.0.0.9", udp_port=spec.UDP_PORT, mac="02:00:00:00:00:09", switch_port=60)
    job = JobSpec(
        job=7, epoch=200, fan_in=0b1110, slot_base=512, slot_count=256, group=7, ttl_ticks=100, level="root",
        members=tuple(hosts), parameter_server=server, uplink=server, loop_port=tofino.LOOP_PORTS[program.chip],
    )  # fmt: skip
    schema = from_p4info(parse_p4info(program.p4info()))
    for entry in job_entries.entries(job):
        assert encode(entry, schema).table_entry.table_id  # which fails where a field or a parameter does not exist
    assert (tofino.LOOP_PORTS[program.chip], job_entries.OWN_COPY) in {
        (r.port, r.instance) for r in job_entries.groups(job)[0].replicas
    }


def test_little_code_belongs_to_one_target_only() -> None:
    done = subprocess.run([ROOT / "scripts" / "tofino", "lines"], capture_output=True, text=True, check=True)
    share = re.search(r"^one target only: ([\d.]+) %$", done.stdout, re.MULTILINE)
    assert share is not None
    assert float(share[1]) < 16


def test_the_port_of_own_copies_is_the_one_that_the_program_knows() -> None:
    text = (P4SRC / "tna" / "target.p4").read_text()
    assert [int(port) for port in re.findall(r"#define LOOP_PORT (\d+)", text)] == list(tofino.LOOP_PORTS.values())

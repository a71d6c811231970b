"""docs/reference.md is what the code declares, and what it says of backends is what they do."""

from pathlib import Path

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.experiments import reference
from sa_atp.lab.plans import capabilities, keys, plan_files
from sa_atp.lab.plans.keys import PlanKey
from sa_atp.lab.plans.plan import TABLES, Plan
from sa_atp.lab.policies.policy import BACKENDS
from sa_atp.lab.report.rows import COLUMNS

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/reference.md"
KEYS = [key for table in (*TABLES, *policies.settings()) for key in keys.keys_of(table)]
OTHER = {"topology.file": "other.json", "switch.pcap": True, "topology.worker_mbps": [1.0] * 4}
"""Values that are not the default, of keys whose limits name none."""


def test_the_page_is_what_is_declared() -> None:
    said = "write it anew: sa-atp plans --reference > docs/reference.md"
    assert DOCUMENT.read_text() == reference.document(), said


def test_all_keys_are_there() -> None:
    tables = Plan().as_dict() | {name: {} for name in policies.settings()}
    assert [key.key for key in KEYS if key.key.partition(".")[0] in TABLES] == [
        f"{table}.{key}" for table, found in tables.items() for key in found
    ]
    text = DOCUMENT.read_text()
    assert [name for name in policies.names() if f"\n- **`{name}`** · " not in text] == []
    assert [name for name in COLUMNS if f"| `{name}` |" not in text] == []


def test_the_page_can_be_read_on_a_narrow_screen() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    assert max(row.count("|") - row.count("\\|") for row in rows) <= 4  # at most three columns


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.key)
def test_a_key_is_described(key: PlanKey) -> None:
    assert key.meaning.endswith((".", ")"))
    assert key.type in ("whole number", "number", "text", "true or false") or key.type.startswith("list of ")
    assert set(key.backends) <= set(BACKENDS)
    assert key.backends


@pytest.mark.parametrize("key", [key for key in KEYS if key.others_refuse], ids=lambda key: key.key)
def test_other_backends_refuse_a_key(key: PlanKey) -> None:
    table, _, name = key.key.partition(".")
    value = OTHER.get(key.key, 2 if key.type == "whole number" else 0.25)
    tables = {table: {name: value}}
    if key.key == "topology.file":
        tables["topology"]["kind"] = "file"
    plan = plan_files.parse_tables(tables, "a plan")
    for backend in BACKENDS:
        if backend in key.backends:
            capabilities.check_settings(plan, backend)
        else:
            with pytest.raises(
                UserError, match=rf"cannot do {table}\.\w+ = .*: use --backend {' or '.join(key.backends)}"
            ):
                capabilities.check_settings(plan, backend)

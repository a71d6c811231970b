"""The registry of policies: documents, plans and reports agree with it, and a policy can be added."""

import json
import re
from pathlib import Path

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.backends import simulated
from sa_atp.lab.plans.plan_files import parse, parse_tables
from sa_atp.lab.policies.policy import BACKENDS
from sa_atp.lab.report.drawing.style import policy_colour
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.report.text import policy_name
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult

from . import patient

ROOT = Path(__file__).resolve().parents[3]
PATIENT = patient.POLICIES[0]

PLAN = """
[run]
steps = 3
warm_up = 0
policies = ["patient", "atp"]
[topology]
workers = 3
[job]
model = "resnet-50"
model_scale = 0.0001
micro_batches = 4
batch_size = 8
[straggler]
workers = [2]
slowdown = 8.0
"""


def sections(text: str) -> dict[str, str]:
    """The sections of the second level of a document: (title, text)."""
    _, *found = re.split(r"^## ", text, flags=re.M)
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in found}


@pytest.fixture(scope="module")
def document() -> str:
    return (ROOT / "docs/policies.md").read_text()


def test_the_document_has_a_row_and_a_section_for_each_policy_in_order(document: str) -> None:
    found = [policies.find(name) for name in policies.names()]
    assert list(sections(document)) == [policy.title for policy in found]
    assert re.findall(r"^\| \[(.*)\]\(#(.*)\) \| `(.*)` \| (.*) \| (.*) \| (.*) \|$", document, re.M) == [
        (policy.title, re.sub(r"[^\w -]", "", policy.title.lower()).replace(" ", "-"), policy.name,
         policy.family.value, ", ".join(policy.backends), policy.source)
        for policy in found
    ]  # fmt: skip


@pytest.mark.parametrize("name", policies.names())
def test_sections_begin_with_the_summary_of_the_registry(name: str, document: str) -> None:
    policy = policies.find(name)
    assert sections(document)[policy.title].split("\n\n")[0].split() == policy.summary.split()


@pytest.mark.parametrize("name", policies.names())
def test_policies_are_complete(name: str) -> None:
    policy = policies.find(name)
    assert policy.summary.endswith(".")
    assert ". " not in policy.summary
    assert re.fullmatch(r"#[0-9A-F]{6}", policy.colour)
    assert set(policy.backends) <= set(BACKENDS)


def test_names_and_colours_are_unique() -> None:
    class Twin(policies.SwitchPolicy):
        name, title, summary, source = "twin", "Twin", "As ATP.", "nobody"
        colour = policies.find("atp").colour

    with pytest.raises(ValueError, match="colour of atp"), policies.registered(Twin()):
        pass
    assert "twin" not in policies.names()


def test_adding_a_policy_needs_only_its_file() -> None:
    """The example that CONTRIBUTING names works: it is validated, has keys, runs, and is reported."""
    with pytest.raises(UserError, match=r"run\.policies = 'patient'"):
        parse(PLAN, "a plan")
    with policies.registered(PATIENT):
        plan = parse(PLAN, "a plan", ["patient.patience=0.25"])
        assert plan.settings_of("patient").patience == 0.25
        assert plan.as_dict()["patient"] == {"patience": 0.25}
        assert parse_tables(json.loads(json.dumps(plan.as_dict())), "again") == plan
        with pytest.raises(UserError, match=r"patient\.patience = -1\.0: expected 0\.0 to 10\.0"):
            parse(PLAN, "a plan", ["patient.patience=-1.0"])
        result = RunResult(plan, "a plan", "sim", "embedded", {}, simulated.run(plan, Progress()))
        summary = summarise(result)
        assert list(summary["policies"]) == ["patient", "atp"]
        for policy in summary["policies"].values():
            assert (policy["sums_checked"], policy["sums_wrong"]) == (9, 0)
        assert summary["policies"]["patient"]["help"]["micro_batches"] > 0
        assert policy_name("patient") == "Patient SA-ATP"
        assert policy_colour("patient") == PATIENT.colour
    assert "patient" not in policies.names()


def test_a_plan_has_the_own_tables_of_the_policies_it_names() -> None:
    with policies.registered(PATIENT):
        assert parse(PLAN, "a plan").as_dict()["patient"] == {"patience": 0.5}
        assert "patient" not in parse('[run]\npolicies = ["atp"]', "a plan").as_dict()
        swept = parse(PLAN, "a plan", ["sweep.key=patient.patience", "sweep.values=[0.1, 0.2]"])
        assert swept.sweep.key == "patient.patience"

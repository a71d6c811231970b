"""Policies of a user's own, registered or named in the environment: all processes of a run have them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.plans import small_plan_file

from lab.experiments import own_policy
from sa_atp import experiment
from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.policies.policy import SwitchPolicy

FILE = str(Path(own_policy.__file__).resolve())
policies.forget(own_policy.Cloned.name)  # importing the file has registered it, for all processes that tests start
SLOW = {"straggler.pattern": "constant", "straggler.workers": [1]}


class Complete(SwitchPolicy):
    name, title, summary, source, colour = "mine", "Mine", "As ATP.", "a test", "#010203"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has none registered, before and after."""
    for name in [*policies._sources]:
        policies.forget(name)
    monkeypatch.delenv(policies.OWN, raising=False)
    yield
    for name in [*policies._sources]:
        policies.forget(name)


def test_a_class_is_registered_by_running_it(tmp_path: Path) -> None:
    plan = small_plan_file(tmp_path)
    found = experiment.run(
        plan, SLOW, policies=["atp", own_policy.Cloned], backend="sim", out=tmp_path / "out", draw=False, progress=False
    )
    assert list(found.summary["policies"]) == ["atp", "cloned"]
    assert found.summary["policies"]["cloned"]["sums_wrong"] == 0
    assert found.summary["policies"]["cloned"]["help"]["micro_batches"] > 0
    assert "cloned" in experiment.policies()


def test_it_may_be_registered_again_as_a_cell_is_run_again() -> None:
    first, second = experiment.register(Complete), experiment.register(Complete())
    assert policies.find("mine") is second is not first
    policies.forget("mine")
    with pytest.raises(UserError, match="policy 'mine': expected one of 'atp'"):
        policies.find("mine")
    with pytest.raises(UserError, match="policy 'mine': expected one that was registered: none was"):
        policies.forget("mine")


def test_what_is_no_policy_is_refused() -> None:
    class Twin(Complete):
        name, colour = "atp", "#040506"

    class Bare(SwitchPolicy):
        name = "bare"

    class Grey(Complete):
        colour = policies.find("atp").colour

    with pytest.raises(UserError, match="the policy 'atp' has the name of another one"):
        experiment.register(Twin)
    with pytest.raises(UserError, match="the policy Bare has no title, summary, source and colour"):
        experiment.register(Bare)
    with pytest.raises(UserError, match="expected a class derived from SwitchPolicy"):
        experiment.register(Path)  # type: ignore[arg-type]
    first = experiment.register(Complete)
    with pytest.raises(UserError, match="has the colour of atp, #"):
        experiment.register(Grey)
    assert policies.find("mine") is first


def in_a_process(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip


def test_processes_of_a_run_have_it(tmp_path: Path) -> None:
    """From a file that lies anywhere; beside it, one defined in the program itself, which they cannot have."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "my_policy.py").write_text(Path(FILE).read_text())
    plan = small_plan_file(tmp_path)
    program = f"""
import sys
sys.path.append("elsewhere")
from sa_atp import experiment, UserError
from my_policy import Cloned
import os
os.chdir("/")
options = dict(backend="sim", jobs=2, out={str(tmp_path / "out")!r}, draw=False, progress=False)
found = experiment.run({str(plan)!r}, policies=["cloned", "atp"], **options)
assert list(found.summary["policies"]) == ["cloned", "atp"]
class Here(Cloned):
    name, colour = "here", "#070809"
for options in ({{"backend": "local"}}, {{"backend": "sim", "jobs": 2}}):
    try:
        experiment.run({str(plan)!r}, policies=[Here], progress=False, **options)
    except UserError as error:
        print(error)
"""
    done = in_a_process(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run.policies: here: defined in a notebook, or in the program itself") == 2


def test_the_command_line_has_it_by_the_environment(tmp_path: Path) -> None:
    plan = small_plan_file(tmp_path, run={"policies": ["cloned"]})
    command = f"from sa_atp.cli import main; raise SystemExit(main(['run', {str(plan)!r}, '--backend', 'sim']))"
    without = in_a_process(command, tmp_path)
    assert without.returncode == 2
    assert "run.policies = 'cloned': expected one of" in without.stderr
    wrong = in_a_process(command, tmp_path, SA_ATP_POLICIES="nowhere.py")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("sa-atp: SA_ATP_POLICIES: nowhere.py: no policies can be had from there: ")
    done = in_a_process(command, tmp_path, SA_ATP_POLICIES=f"{FILE}:Cloned")
    assert done.returncode == 0, done.stderr
    assert "SA-ATP, cloning" in done.stdout

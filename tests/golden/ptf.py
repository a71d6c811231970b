"""The golden vectors for a Tofino or its model: as PTF tests (`scripts/tofino ptf FOLDER`), or for `sa-atp stf`.

A file a vector, with its jobs, its routes and its packets in full; vector.py, a copy of ptf_vector.py, carries them out.
Nothing is masked: what a packet looks like on its way out is determined in every bit.
"""

from collections.abc import Iterator
from pathlib import Path
from pprint import pformat
from textwrap import wrap

from sa_atp.switches.control.jobspec import JobSpec

from .scenario import Scenario
from .scenarios import EACH

RUNNER = Path(__file__).resolve().parent / "ptf_vector.py"
# Where a Tofino differs on the wire (protocol section 4.9): these vectors cannot pass, and say why.
SKIPPED = {
    "evictions": "the time to live is the switch's on a Tofino, not the job's, and here one job is more patient than the "
    "other (protocol section 4.9)",
    "lapses": "what lapses there does so with the switch's own clock, which nobody sets; `sa-atp stf` runs it on the model",
    "truncated": "a Tofino's parser itself drops packets that end too early, and counts them nowhere (protocol section "
    "4.9)",
}
BARE = ("scattered", "scattered_leaf", "scattered_uneven")
SKIPPED |= dict.fromkeys(BARE, "the program for Tofino has no bare results (docs/tofino.md)")
STF_ONLY = ("lapses", "truncated")
# Own copies of results are counted by a Tofino only; what its parser drops nobody counts.
UNCOUNTED = {"truncated": ("finished", "malformed")}
_WIDTH = 118


def files(chip: str, lanes: int, loop_port: int) -> dict[str, str]:
    """What is to be written, by file name."""
    made = {"vector.py": RUNNER.read_text(encoding="utf-8")}
    for name, make in EACH.items():
        made[f"test_{name}.py"] = "\n".join(_module(name, make(lanes), chip, loop_port)) + "\n"
    return made


def stf_files(lanes: int, loop_port: int) -> dict[str, str]:
    """The same as packet tests for `sa-atp stf`, by file name."""
    return {
        f"{name}.stf": make(lanes).stf(loop_port=loop_port, uncounted=UNCOUNTED.get(name, ("finished",)))
        for name, make in EACH.items()
        if name not in SKIPPED or name in STF_ONLY
    }


def _module(name: str, scenario: Scenario, chip: str, loop_port: int) -> Iterator[str]:
    title = "".join(word.capitalize() for word in name.split("_"))
    yield '"""' + "\n".join(scenario.about)
    yield ""
    yield f"For packets of {scenario.lanes} lanes. Written by `scripts/tofino ptf` from the golden vector {name}."
    if name in SKIPPED:
        yield from ("", *wrap(f"Skipped: {SKIPPED[name]}.", _WIDTH))
    yield '"""'
    yield "\nfrom sa_atp.switches.control.jobspec import JobSpec, Member\nfrom vector import Vector\n\n"
    yield f"class {title}(Vector):"
    yield f'    chip = "{chip}"'
    yield f"    lanes = {scenario.lanes}"
    if name in SKIPPED:
        yield f"    skip = {SKIPPED[name]!r}"
    yield "    jobs = ("
    for job in scenario.jobs:
        yield from (f"        {line}" for line in f"{_job(job, loop_port)},".splitlines())
    yield "    )"
    yield f"    routes = {tuple(scenario.routes)!r}"
    yield "    steps = ("
    for step, words in scenario.steps:
        yield from (f"        # {line}" for line in wrap(" ".join(words.split()), _WIDTH - 10))
        yield from (f"        {line}" for line in f"{pformat(step, width=_WIDTH, sort_dicts=False)},".splitlines())
    yield "    )"


def _job(job: JobSpec, loop_port: int) -> str:
    """As the control plane would install it on a Tofino."""
    fields = {name: getattr(job, name) for name in JobSpec.__dataclass_fields__} | {"loop_port": loop_port}
    said = ",\n".join(f"    {name}={value!r}" for name, value in fields.items())
    return f"JobSpec(\n{said},\n)"

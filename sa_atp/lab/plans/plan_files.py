"""Reading and validation of plan files.

Unknown keys, wrong types and values out of range are refused with the key, the value, and what would be accepted.
"""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import parse_toml, read_text
from sa_atp.basics.tables import read_table
from sa_atp.basics.words import join, meant, plural
from sa_atp.lab import policies
from sa_atp.lab.plans import traces
from sa_atp.lab.plans.plan import DERIVED, TABLES, Plan
from sa_atp.steps.parallel import POINTS, is_curve

WORD = re.compile(r"[A-Za-z][\w+-]*|[0-9]+(\.[0-9]+)?")


Overrides = Mapping[str, Any] | Iterable[str]
"""Other values for keys of a plan: a mapping such as {"help.grade": "clone"}, or texts, as `--set` has them."""


def load(path: Path, overrides: Overrides = ()) -> Plan:
    """Reads a plan file. Args: overrides: values that replace those of the file. Raises: UserError."""
    return parse(read_text(path), str(path), overrides)


def parse(text: str, path: str, overrides: Overrides = ()) -> Plan:
    """A plan from TOML text. Args: path: its file: its name in messages, and files that it names are beside it.

    Raises: UserError naming the key.
    """
    tables = parse_toml(text, path)
    said = [f"{name}.{key}" for name, table in tables.items() if isinstance(table, dict) for key in table]
    return _overridden(tables, said, _read_overrides(overrides), path)


def changed(plan: Plan, overrides: Overrides, path: str, at: str = "") -> Plan:
    """Checks a plan that was made in Python, as a file is checked, and gives it other values for some keys.

    Args: path: the plan's file, as for `parse`; at: the changed value, as messages name it behind the path.
    Raises: UserError.
    """
    straggler = plan.straggler
    rows_of = getattr(straggler.rows, "trace", None)  # None: they are the caller's own
    if rows_of not in (None, straggler.trace):
        plan = dataclasses.replace(plan, straggler=dataclasses.replace(straggler, rows=()))
    said = ["straggler.rows"] if straggler.rows and rows_of is None else []
    return _overridden(plan.as_dict(), said, _read_overrides(overrides), path, at)


def _overridden(
    tables: dict[str, Any], said: Iterable[str], overrides: "list[_Override]", path: str, at: str = ""
) -> Plan:
    """Puts other values into a plan's tables. What follows from another key's value (`plan.DERIVED`) goes with that value.

    Args: said: keys whose values are the user's own. Raises: UserError.
    """
    for override in overrides:
        table = tables.setdefault(override.table, {})
        if isinstance(table, dict):  # else the plan is wrong, and that is said when it is read
            table[override.key] = override.value
    own = {*said, *(override.path for override in overrides)}
    for derived, source in DERIVED.items():
        name, key, other = *derived.split("."), source.partition(".")[2]
        table = tables.get(name)
        if not isinstance(table, dict):
            continue
        if derived in own and table.get(other) and table.get(key):
            raise UserError(
                f"{path}{at}: {derived} is what {source} = {table[other]!r} has: expected one of the two keys"
            )
        if derived not in own and source in own:
            table.pop(key, None)
    plan = parse_tables(tables, path, at)
    for override in overrides:
        _check_it_counts(plan, override)
    return plan


def _with_rows(plan: Plan, path: str, at: str) -> Plan:
    """The plan with the rows of the trace that it names; if it has them already, they are those. Raises: UserError."""
    straggler = plan.straggler
    if not straggler.trace:
        return plan
    file = Path(path).parent / straggler.trace
    if not straggler.rows and not file.exists():
        raise UserError(f"{path}{at}: straggler.trace = {straggler.trace!r}: no such file in {file.parent.absolute()}")
    rows = traces.TraceRows(straggler.rows or traces.read(file), straggler.trace)
    return dataclasses.replace(plan, straggler=dataclasses.replace(straggler, rows=rows))


def parse_tables(tables: Mapping[str, Any], path: str, at: str = "") -> Plan:
    """A plan from TOML tables, or from `Plan.as_dict()`. Args: see `changed`. Raises: UserError naming the key."""
    where = f"{path}{at}"
    kinds: dict[str, Any] = {**TABLES, **policies.settings()}
    found = {}
    for name, table in tables.items():
        if name not in kinds:
            known = ", ".join(f"[{kind}]" for kind in kinds)
            raise UserError(f"{where}: unknown table [{name}]{meant(name, kinds)}; a plan has {known}")
        if not isinstance(table, dict):
            raise UserError(f"{where}: {name} must be a table")
        found[name] = read_table(kinds[name], name, table, where)
    settings = {name: table for name, table in found.items() if name not in TABLES}
    plan = Plan(**{name: table for name, table in found.items() if name in TABLES}, settings=settings)
    own = {name: plan.settings_of(name) for name in policies.tables_of(plan.run.policies)}
    plan = _with_rows(dataclasses.replace(plan, settings=own | settings), path, at)
    _check_together(plan, where)
    return plan


class _Override(NamedTuple):
    table: str
    key: str
    value: Any
    said: str
    """As the user wrote it, for messages."""

    @property
    def path(self) -> str:
        return f"{self.table}.{self.key}"


def _read_overrides(given: Overrides) -> list[_Override]:
    """Raises: UserError."""
    if isinstance(given, Mapping):
        return [_override_of(key, value) for key, value in given.items()]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f'overrides = {given!r}: expected a mapping, for example {{"help.grade": "clone"}}')
    return [_override_in(text) for text in given]


def overridden(overrides: Overrides) -> tuple[str, ...]:
    """The keys that have other values. Raises: UserError."""
    return tuple(override.path for override in _read_overrides(overrides))


def _override_of(path: Any, value: Any) -> _Override:
    """An override of a mapping."""
    table, _, key = path.partition(".") if isinstance(path, str) else ("", "", "")
    if not table or not key:
        raise UserError(f'overrides: the key {path!r}: expected "TABLE.KEY", for example "help.grade"')
    return _Override(table, key, as_in_toml(value), f"{path} = {value!r}")


def as_in_toml(value: Any) -> Any:
    """A value as TOML has it. Args: value: of Python, or of NumPy."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, tuple | list | range):
        return [as_in_toml(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _override_in(text: str) -> _Override:
    """An override as `--set` takes it."""
    path, equals, value = text.partition("=")
    table, dot, key = path.strip().partition(".")
    if not equals or not dot or not key:
        raise UserError(f"--set {text}: expected TABLE.KEY=VALUE, for example help.grade=clone")
    try:
        parsed = parse_toml(f"x = {value}", "--set")["x"]
    except UserError:
        parsed = value.strip()  # a bare word is a string
        if parsed.startswith("["):
            raise UserError(
                f"--set {text}: not a list in TOML: quote its strings, and the whole argument for the shell: "
                f"--set {_quoted(path.strip(), parsed)}"
            ) from None
    return _Override(table, key, parsed, f"--set {text}")


def _quoted(key: str, text: str) -> str:
    """A correctly quoted list for the command line: the one that was probably meant."""
    words = [word.strip() for word in text.removeprefix("[").removesuffix("]").split(",")]
    if not all(WORD.fullmatch(word) for word in words):
        key, words = "run.policies", ["atp", "sa-atp"]
    values = ", ".join(word if word[0].isdecimal() else json.dumps(word) for word in words)
    return shlex.quote(f"{key}=[{values}]")


def _check_it_counts(plan: Plan, override: _Override) -> None:
    """Raises: UserError: an override is for a policy that does not run."""
    table = override.table
    if table not in policies.settings():
        return
    run = list(plan.run.policies)
    of = [name for name in policies.names() if table in policies.tables_of((name,))]
    if not set(of) & set(run):
        raise UserError(
            f"{override.said}: has no effect: [{table}] is for {join(of)}, and run.policies = {json.dumps(run)}"
        )


def _check_together(plan: Plan, where: str) -> None:
    """Checks rules that involve more than one key."""
    workers, job = plan.topology.workers, plan.job
    if job.batch_size % job.micro_batches:
        raise UserError(
            f"{where}: job.batch_size = {job.batch_size} cannot be cut into "
            f"job.micro_batches = {job.micro_batches} equal parts"
        )
    for name, count in (("slots", plan.switch.slots), ("slots_per_job", plan.switch.slots_per_job)):
        if count & (count - 1):
            raise UserError(f"{where}: switch.{name} = {count}: expected a power of two")
    if plan.switch.quota > plan.switch.slots:
        raise UserError(f"{where}: switch.slots_per_job = {plan.switch.quota} is more than slots = {plan.switch.slots}")
    rates = plan.topology.worker_mbps
    if rates and len(rates) != workers:
        raise UserError(
            f"{where}: topology.worker_mbps has {plural(len(rates), 'rate')} for {plural(workers, 'worker')}"
        )
    if (plan.topology.kind == "file") != bool(plan.topology.file):
        raise UserError(f'{where}: topology.file and topology.kind = "file" belong together')
    if rates and plan.topology.file:
        raise UserError(
            f"{where}: topology.worker_mbps: the links of a topology.file have the rates that it gives them"
        )
    if plan.straggler.by in ("cpu-quota", "hog") and job.device != "cpu":
        raise UserError(f'{where}: straggler.by = {plan.straggler.by!r} slows down real CPUs: set job.device = "cpu"')
    if plan.straggler.by != "device" and plan.straggler.pattern not in ("constant", "none"):
        raise UserError(f'{where}: straggler.by = {plan.straggler.by!r} needs straggler.pattern = "constant"')
    first, end = plan.straggler.from_step, plan.straggler.until_step
    if end and end <= first:
        raise UserError(
            f"{where}: straggler.until_step = {end}: expected more than from_step = {first}, or 0 for no end"
        )
    if plan.sweep.key == "run.policies":
        raise UserError(
            f"{where}: sweep.key = 'run.policies': list all policies in run.policies: each point runs them all"
        )
    if bool(plan.sweep.key) != bool(plan.sweep.values):
        raise UserError(f"{where}: sweep.key and sweep.values belong together")
    for worker in plan.straggler.workers:
        if plan.straggler.pattern in ("constant", "pause", "contention") and worker >= workers:
            raise UserError(
                f"{where}: straggler.workers names {worker}, but topology.workers = {workers} counts from 0"
            )
    for worker in plan.straggler.among:
        if worker >= workers:
            raise UserError(f"{where}: straggler.among names {worker}, but topology.workers = {workers} counts from 0")
    if not plan.run.policies:
        raise UserError(f"{where}: run.policies is empty: expected at least one of {', '.join(policies.names())}")
    for key, values in (
        ("run.policies", plan.run.policies), ("straggler.workers", plan.straggler.workers),
        ("straggler.among", plan.straggler.among), ("sweep.values", plan.sweep.values),
    ):  # fmt: skip
        if again := [value for number, value in enumerate(values) if value in values[:number]]:
            raise UserError(f"{where}: {key} names {again[0]!r} more than once: expected each once")
    for name in ("slowdown_range", "pause_range", "spell_s", "calm_s"):
        low_high = getattr(plan.straggler, name)
        if len(low_high) != 2 or low_high[0] > low_high[1]:
            raise UserError(f"{where}: straggler.{name} = {list(low_high)}: expected two numbers, the smaller first")
    if job.speeds and len(job.speeds) != workers:
        raise UserError(f"{where}: job.speeds has {plural(len(job.speeds), 'speed')} for {plural(workers, 'worker')}")
    _check_gains(plan, where)
    if plan.straggler.rows:
        source = f"trace = {plan.straggler.trace!r}" if plan.straggler.trace else "rows"
        traces.check_rows(plan.straggler.rows, workers, f"{where}: straggler.{source}")
    if plan.straggler.pattern == "trace" and not (plan.straggler.trace or plan.straggler.rows):
        raise UserError(
            f'{where}: straggler.pattern = "trace" needs straggler.trace, a CSV or JSON file, or straggler.rows'
        )
    if plan.topology.kind == "two-level" and plan.topology.racks > workers:
        raise UserError(f"{where}: topology.racks = {plan.topology.racks} is more than topology.workers = {workers}")
    for policy in plan.run.policies:
        found = policies.find(policy)
        if job.parallel > 1 and not found.has_tasks_at_a_time:
            able = join([name for name in policies.names() if policies.find(name).has_tasks_at_a_time])
            raise UserError(
                f"{where}: job.parallel = {job.parallel}: policy {policy} computes one micro-batch at a time; "
                f"expected 1, or {able}"
            )
        if job.bits != 32 and not _sums_all(plan, policy):
            able = join([name for name in policies.names() if _sums_all(plan, name)])
            raise UserError(f"{where}: job.bits = {job.bits}: policy {policy} sends 32 bits; expected 32, or {able}")
        found.check(plan, where)


def _sums_all(plan: Plan, policy: str) -> bool:
    """Whether every worker contributes to each of the policy's sums, by this project's protocol."""
    found = policies.find(policy)
    return isinstance(found, policies.SwitchPolicy) and not found.seats(plan)


def _check_gains(plan: Plan, where: str) -> None:
    """Raises: UserError: a device has no possible gain from several tasks at a time."""
    job, workers = plan.job, plan.topology.workers
    rows = [("parallel_gain", job.parallel_gain)]
    rows += [(f"worker_parallel_gain[{rank}]", row) for rank, row in enumerate(job.worker_parallel_gain)]
    if job.worker_parallel_gain and len(job.worker_parallel_gain) != workers:
        raise UserError(
            f"{where}: job.worker_parallel_gain has {plural(len(job.worker_parallel_gain), 'row')} for "
            f"{plural(workers, 'worker')}"
        )
    for name, row in rows:
        if not all(isinstance(each, int | float) for each in row) or not is_curve(row):
            raise UserError(
                f"{where}: job.{name} = {list(row)}: expected the throughput with {join(map(str, POINTS))} micro-batches "
                "at a time: four numbers, the first 1, each at most so many times the one before as its number of "
                "micro-batches is"
            )
    if job.parallel > 1 and job.device == "cpu":
        raise UserError(f'{where}: job.parallel = {job.parallel}: expected 1 with job.device = "cpu"')

"""docs/reference.md, made of declarations: keys of plans, policies, figures, and columns of iterations.csv."""

import typing
from collections.abc import Iterable, Iterator

from sa_atp.basics.tables import meanings
from sa_atp.basics.words import join
from sa_atp.lab import policies
from sa_atp.lab.plans.keys import TYPES, backends_text, default_text, keys_of, used_with_text
from sa_atp.lab.plans.plan import TABLES
from sa_atp.lab.policies import Policy
from sa_atp.lab.policies.policy import BACKENDS
from sa_atp.lab.report.drawing.figures import FIGURES
from sa_atp.lab.report.rows import Row
from sa_atp.lab.report.sweep import QUANTITIES
from sa_atp.lab.runs.records import Iteration, PolicyRun

HEAD = """\
# Reference

Keys of plans, policies, figures of reports, and columns of `iterations.csv`. `sa-atp plans --reference` prints this page,
from the declarations in the code.

- [Keys of plans](#keys-of-plans), and [of policies](#keys-of-policies)
- [Policies](#policies)
- [Figures](#figures)
- [Columns of iterations.csv](#columns-of-iterationscsv)

## Keys of plans

A plan is a TOML file with these tables. Below is each key with its default, the values that it takes, and the backends that
use it, unless all do: another one either ignores the key (*unused*), or refuses other values than the default (*refused*).
*Used with*: the key has an effect beside these values of other keys; a run says which of its keys have none, and a sweep or
a map over one is refused.
`sa-atp run PLAN --set TABLE.KEY=VALUE` overrides a key.
"""
OWN_KEYS = "A policy's own keys count where `run.policies` names it."
POLICIES = """\
What workers do with their time, and what happens to updates: each with its name in reports, and the backends that run it,
unless all do. [policies.md](policies.md) explains each."""
FIGURES_HEAD = """\
`sa-atp run` and `sa-atp plot` draw these, `Result.figure` in Python. One for which a run has no data is left out, and the
report says why."""
SWEEPS = "A sweep has one figure, `sweep.png`; `sweep.figure` says which:"
COLUMNS = """\
A row for each policy, repetition, job, step and worker. A number that is not known is an empty field. [Times of
steps](cli.md#times-of-steps) defines the times."""


def document() -> str:
    """The page, in Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    for table in TABLES:
        yield from _table_of_keys(table)
    yield f"## Keys of policies\n\n{OWN_KEYS}\n"
    for table in policies.settings():
        yield from _table_of_keys(table)
    yield f"## Policies\n\n{POLICIES}\n"
    yield from (*map(_policy, policies.names()), "")
    yield f"## Figures\n\n{FIGURES_HEAD}\n"
    yield from _table(("figure", "caption"), ((f"`{kind.name}`", kind.caption) for kind in FIGURES))
    yield f"{SWEEPS}\n"
    figures = {name: join(each.title for each in shown) for name, shown in QUANTITIES.items()}
    yield from _table(("`sweep.figure`", "panels"), ((f"`{name}`", panels) for name, panels in figures.items()))
    yield f"## Columns of iterations.csv\n\n{COLUMNS}\n"
    said = {**meanings(PolicyRun), **meanings(Iteration), **meanings(Row)}
    kinds = typing.get_type_hints(Row)
    yield from _table(("column", "type", "meaning"), ((f"`{name}`", TYPES[kinds[name]], said[name]) for name in kinds))


def _table_of_keys(table: str) -> Iterator[str]:
    yield f"### [{table}]\n"
    for key in keys_of(table):
        facts = [f"{key.type}: {key.limits}" if key.limits else key.type, *_unless_all(backends_text(key))]
        if used_with := used_with_text(key):
            facts.append(f"used with {used_with}")
        yield _entry(f"**`{key.key}`** = `{default_text(key)}`", facts, key.meaning)
    yield ""


def _policy(name: str) -> str:
    policy: Policy = policies.find(name)
    table = join(f"[`[{each}]`](#{each})" for each in policies.tables_of((name,)))
    needs = f" Needs {join(policy.modules)}." if policy.modules else ""
    backends = () if policy.backends == BACKENDS else policy.backends
    facts = [policy.title, *_unless_all(", ".join(backends) or "all"), *([f"own keys: {table}"] if table else [])]
    return _entry(f"**`{name}`**", facts, policy.summary + needs)


def _unless_all(backends: str) -> list[str]:
    return [] if backends == "all" else [f"backends: {backends}"]


def _entry(head: str, facts: Iterable[str], meaning: str) -> str:
    """An item of a list, not a row of a table: its meaning is as wide as the page, also on a narrow one."""
    return f"- {' · '.join((head, *facts))}\\\n  {meaning}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""

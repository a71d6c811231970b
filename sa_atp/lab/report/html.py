"""report.html: the report as one self-contained page."""

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sa_atp.lab.report import comparing, findings, stats, table
from sa_atp.lab.report.drawing.figures import Drawn
from sa_atp.lab.report.page import NARROW_BELOW, STYLE
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.report.text import NBSP, duration, factor, number, percent, policy_name
from sa_atp.lab.runs.records import RunResult

MOST_SHOWN = 16  # entries of a list in the plan, such as a trace; manifest.json has all


def render(
    result: RunResult,
    figures: Sequence[Drawn] = (),
    left_out: Mapping[str, str] | None = None,
    summary: dict[str, Any] | None = None,
) -> str:
    """The page of a run, without any reference to other files or hosts.

    Args:
        figures: in order.
        left_out: by name, why a figure is missing.
        summary: the run's, if it is computed already.
    """
    summary = summary or summarise(result)
    title = findings.iteration_time(result)
    body = [
        _remarks(findings.remarks(result, summary), "wrong"),
        f"<header><p class=kicker>SA-ATP, report of a run</p><h1>{escape(title)}</h1>",
        f"<p class=lead>{escape(findings.what_ran(result))}.</p></header>",
        _remarks(findings.remarks(result, summary), "doubt"),
        _headlines(result, summary),
        _notes(result, summary),
        "<h2>Figures</h2>",
        *map(_figure, figures),
        *(f"<p class=note>{escape(name)} is not drawn: {escape(why)}.</p>" for name, why in (left_out or {}).items()),
        "<h2>In numbers</h2>",
        _numbers(summary),
        "<h2>What was run</h2>",
        _plan(result),
        "<h2>How to repeat it</h2>",
        _repeat(result),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


_ABOUT_EMULATION = (
    "So iteration times are those of devices of that speed, not of this machine; packets, sums and training are real, and "
    "the times include them."
)


def _notes(result: RunResult, summary: dict[str, Any]) -> str:
    about = [_ABOUT_EMULATION] if result.devices == "emulated" else []
    return f"<p class=note>{escape(' '.join([*table.notes(result, summary), *about]))}</p>"


def _remarks(remarks: Sequence[findings.Remark], level: str) -> str:
    found = [f"<p>{escape(remark.text)}</p>" for remark in remarks if remark.level == level]
    return f'<section class="remark {level}" role=alert>{"".join(found)}</section>' if found else ""


def _headlines(result: RunResult, summary: dict[str, Any]) -> str:
    """The main numbers: the policy of the title against the baseline."""
    comparison, policies = summary["comparison"], summary["policies"]
    found = stats.policies(result)
    base, best = stats.baseline(result, found), findings.headline(result, found)
    how = comparing.iterations(result, base, best) if base is not None and best is not None else None
    cards = []
    if base is None or best is None or how is None or not how.is_clear:
        for policy, each in policies.items():
            cards.append((duration(each["iteration_time_s"]["mean"]), f"per iteration, {policy_name(policy)}"))
    else:
        name, than = policy_name(best.policy), policy_name(base.policy)
        interval = comparison["iteration_time_reduction_ci95"][best.policy]
        spread = f" (± {percent((interval[1] - interval[0]) / 2)}, 95{NBSP}% interval)" if interval else ""
        cards.append(
            (
                percent(abs(how.reduction)),
                f"{how.verdict} iterations of {name}{spread}: {duration(best.mean_s)} instead of {duration(base.mean_s)}",
            )
        )
        speedup = comparison["speedup"][best.policy]
        if speedup is not None:
            cards.append((factor(speedup), f"as many iterations in the same time, {name} against {than}"))
        if comparison["training_speedup"][best.policy] is not None:
            goal = percent(summary["target_accuracy"])
            sooner = factor(comparison["training_speedup"][best.policy])
            cards.append((sooner, f"as fast to {goal} accuracy, {name} against {than}"))
        if policies[best.policy]["ratio_to_fluid_bound"] is not None:
            ratio = policies[best.policy]["ratio_to_fluid_bound"]
            cards.append((factor(ratio), f"the fluid bound of {duration(policies[best.policy]['fluid_bound_s'])}"))
    wrong, checked = (sum(p[key] for p in policies.values()) for key in ("sums_wrong", "sums_checked"))
    cards.append((number(wrong), f"wrong sums of {number(checked)} that were checked"))
    items = [f"<div><b>{escape(value)}</b><span>{escape(text)}</span></div>" for value, text in cards]
    items[-1] = items[-1].replace("<div>", '<div class="bad">') if wrong else items[-1]
    return f"<section class=cards>{''.join(items)}</section>"


def _figure(drawn: Drawn) -> str:
    """A figure for wide and narrow screens; printed pages get the wide one."""
    return (
        f'<figure><picture><source media="screen and (max-width: {NARROW_BELOW}px)" srcset="{drawn.narrow}">'
        f'<img src="{drawn.wide}" alt="{escape(drawn.caption)}"></picture>'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
    )


def _numbers(summary: dict[str, Any]) -> str:
    policies, comparison = summary["policies"], summary["comparison"]
    if not policies:
        return "<p>No data was recorded.</p>"
    heads = []
    for policy in policies:
        baseline = "<small>baseline</small>" if policy == comparison["baseline"] else ""
        heads.append(f"<th scope=col>{escape(policy_name(policy))}{baseline}</th>")
    lines = [f"<tr><td></td>{''.join(heads)}</tr>"]
    for heading, rows in table.rows(summary):
        lines.append(f"<tr class=group><th colspan={len(policies) + 1}>{escape(heading)}</th></tr>")
        for label, cell in rows:
            cells = [cell(policy, policies[policy], comparison) for policy in policies]
            bad = label == "wrong"
            marked = "".join(f"<td{' class=bad' if bad and c != '0' else ''}>{escape(c)}</td>" for c in cells)
            lines.append(f"<tr><th scope=row>{escape(label)}</th>{marked}</tr>")
    return f"<div class=scroll><table class=numbers>{''.join(lines)}</table></div>"


def _plan(result: RunResult) -> str:
    """The plan, a row for each table."""
    lines = []
    for name, settings in result.plan.as_dict().items():
        shown = ", ".join(f"{key}&nbsp;=&nbsp;<b>{_value(value)}</b>" for key, value in settings.items())
        lines.append(f"<tr><th scope=row>[{escape(name)}]</th><td>{shown}</td></tr>")
    return f"<table class=plan>{''.join(lines)}</table>"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        more = f", … {number(len(value))} in all" if len(value) > MOST_SHOWN else ""
        return "[" + ", ".join(_value(each) for each in value[:MOST_SHOWN]) + more + "]"
    return escape(f"{value:g}" if isinstance(value, float) else str(value))


def _repeat(result: RunResult) -> str:
    manifest = result.manifest
    command = manifest.get("command") or manifest.get("command_line")
    line = shlex.join(map(str, command)) if isinstance(command, list | tuple) else str(command or "")
    known = {
        "plan": result.plan_path,
        "seed": manifest.get("seed", result.plan.run.seed),
        "commit": manifest.get("commit") or "not known",
        "P4 program": (manifest.get("program") or {}).get("name"),
        "python": manifest.get("python"),
        "kernel": manifest.get("kernel"),
        "machine": manifest.get("machine"),
        "processors": manifest.get("cpus"),
    }
    versions = manifest.get("versions")
    if isinstance(versions, dict):
        known["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"<tr><th scope=row>{key}</th><td>{escape(str(v))}</td></tr>" for key, v in known.items() if v is not None]
    run = f"<pre>{escape(line)}</pre>" if line else ""
    return f"{run}<table class=plan>{''.join(lines)}</table><p class=note>Everything else is in manifest.json.</p>"

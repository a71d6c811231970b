"""report.html: the report as one self-contained page. Its template is report.html.jinja."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sa_atp.basics import needs
from sa_atp.lab.report import comparing, findings, stats, table
from sa_atp.lab.report.drawing.figures import Drawn
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.report.text import NBSP, duration, factor, number, percent, policy_name, setting
from sa_atp.lab.runs.records import RunResult

ABOUT_EMULATION = (
    "So iteration times are those of devices of that speed, not of this machine; packets, sums and training are real, and "
    "the times include them."
)


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

    Raises: MissingPartError: without jinja2.
    """
    summary = summary or summarise(result)
    policies = summary["policies"]
    command = result.manifest.get("command") or result.manifest.get("command_line")
    return filled(
        "report.html.jinja",
        title=findings.iteration_time(result),
        what_ran=findings.what_ran(result),
        all_remarks=findings.remarks(result, summary),
        headlines=_headlines(result, summary),
        wrong=sum(each["sums_wrong"] for each in policies.values()),
        checked=sum(each["sums_checked"] for each in policies.values()),
        notes=[*table.notes(result, summary), *([ABOUT_EMULATION] if result.devices == "emulated" else [])],
        about_numbers=table.of_few_values(summary),
        figures=figures,
        left_out=left_out or {},
        policies={policy: table.numbers_of(summary, policy) for policy in policies},
        comparison=summary["comparison"],
        groups=table.rows(summary),
        plan=result.plan_as_run.as_dict(),
        command=shlex.join(map(str, command)) if isinstance(command, list | tuple) else str(command or ""),
        known=_known(result),
        number=number,
        policy_name=policy_name,
        shown=setting,
    )


def filled(template: str, **values: Any) -> str:
    """A page. Args: template: a file in this folder; values: its variables. Raises: MissingPartError: without jinja2."""
    needs.require_modules(f"{template.removesuffix('.jinja')} needs", "jinja2")
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(
        loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return pages.get_template(template).render(**values)


def _headlines(result: RunResult, summary: dict[str, Any]) -> list[tuple[str, str]]:
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
        target = summary["target_accuracy"]
        training = comparing.training_times(result, base.reached_s(target), best.reached_s(target))
        if comparison["training_speedup"][best.policy] is not None and training is not None and training.is_clear:
            goal = percent(target)
            sooner = factor(comparison["training_speedup"][best.policy])
            cards.append((sooner, f"as fast to {goal} accuracy, {name} against {than}"))
        if policies[best.policy]["ratio_to_fluid_bound"] is not None:
            ratio = policies[best.policy]["ratio_to_fluid_bound"]
            cards.append((factor(ratio), f"the fluid bound of {duration(policies[best.policy]['fluid_bound_s'])}"))
    return cards


def _known(result: RunResult) -> dict[str, Any]:
    """The plan, seed, versions and machine of a run, by name, for those who repeat it; None: not known."""
    manifest = result.manifest
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
    return known

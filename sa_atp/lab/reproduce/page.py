"""The page of `sa-atp reproduce`: the papers' claims, our results, and why they differ."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from sa_atp.basics import terminal
from sa_atp.basics.words import join, plural
from sa_atp.lab.report.text import NBSP, digits, duration, percent, policy_name
from sa_atp.lab.reproduce.points import Found, limit, median, sums_wrong, value, values, values_at_best
from sa_atp.lab.reproduce.settings import TARGET, Claim, Headline

Findings = Mapping[str, Sequence[Sequence[Found]]]
"""Results of each headline's claims, in each of their settings."""
QUANTITIES = {"iteration": "iteration_time", "sample": "sample_time", "accuracy": "time_to_accuracy"}
LEAST = 0.0005  # smaller reductions are shown as 0
PLACES = 6  # decimal places in reproduce.json
INNERMOST = re.compile(r"[\[{][^\[\]{}\"]*(?:\"[^\"]*\"[^\[\]{}\"]*)*[\]}]")


# --- numbers ----------------------------------------------------------------------------------------------------------


def numbers(
    headlines: Sequence[Headline], found: Findings, seed: int, seeds: Sequence[int], steps: int | None
) -> dict[str, Any]:
    """The content of reproduce.json."""
    return {
        "schema": 1,
        "seed": seed,
        "seeds": list(seeds),
        "steps": steps,
        "target_accuracy": TARGET,
        "headlines": [
            {
                "name": headline.name,
                "title": headline.title,
                "source": headline.source,
                "paper": headline.says,
                "claims": [
                    _claim(claim, settings)
                    for claim, settings in zip(headline.claims, found[headline.name], strict=True)
                ],
                "differs": list(headline.differs),
            }
            for headline in headlines
        ],
        "sums_wrong": sum(sums_wrong(settings) for claims in found.values() for settings in claims),
    }


def _claim(claim: Claim, settings: Sequence[Found]) -> dict[str, Any]:
    return {
        "policy": claim.policy,
        "baseline": claim.baseline,
        "quantity": QUANTITIES[claim.quantity],
        "figure": "speedup" if claim.is_speedup else "reduction",
        "paper": _round(claim.paper),
        **({"said_by": claim.said_by} if claim.said_by else {}),
        "ours": _spread(values(claim, settings)),
        "reached": _reached(claim, values(claim, settings)) if claim.paper is not None else None,
        **_at_best(claim, settings),
        "settings": [
            {
                "name": each.setting.name,
                "plan": {name: dict(table) for name, table in each.setting.tables.items()},
                "learning_rates": dict(each.rates),
                "ours": _spread(values(claim, [each])),
                "at_bound": _round(limit(claim, each)),
                **({"baseline_at_a_time": each.parallel} | _at_best(claim, [each]) if claim.at_best else {}),
                "runs": [
                    {
                        "seed": sample.seed,
                        "value": _round(None if (r := sample.ratio(claim.quantity)) is None else value(claim, r)),
                        claim.policy: {key: _round(number) for key, number in sample.policy.items()},
                        claim.baseline: {key: _round(number) for key, number in sample.baseline.items()},
                    }
                    for sample in each.samples
                ],
            }
            for each in settings
        ],
    }


def _at_best(claim: Claim, settings: Sequence[Found]) -> dict[str, Any]:
    """The claim against the baseline at its best, if that is compared."""
    return {"ours_at_best": _spread(values_at_best(claim, settings))} if claim.at_best else {}


def _spread(found: Sequence[float]) -> dict[str, Any]:
    return {
        "runs": len(found),
        "min": _round(min(found, default=None)),
        "median": _round(median(found)),
        "max": _round(max(found, default=None)),
    }


def _round(number: Any) -> Any:
    return round(number, PLACES) if isinstance(number, float) else number


def _reached(claim: Claim, found: Sequence[float]) -> int:
    """Number of runs that reach the paper's number."""
    return sum(claim.paper is not None and number >= claim.paper for number in found)


def as_text(found: Mapping[str, Any]) -> str:
    """Formats as JSON, with innermost lists and objects on one line."""
    text = json.dumps(found, indent=1, allow_nan=False)
    return INNERMOST.sub(lambda match: re.sub(r"\n *", " ", match[0]), text) + "\n"


# --- words ------------------------------------------------------------------------------------------------------------


def shown(claim: Claim, number: float | None, *, exact: bool = False) -> str:
    """A number in the paper's form. Args: exact: keeps all digits."""
    if number is None:
        return "–"
    if claim.is_speedup:
        return f"{number:.2f}×" if not exact else f"{number:g}×"
    if exact:
        return f"{100 * number:g}{NBSP}%"
    if abs(number) < LEAST:
        return f"0{NBSP}%"
    return percent(number).replace("-", "−")


def names(claim: Claim) -> str:
    said = f" (implied by {claim.said_by})" if claim.said_by else ""
    return f"{policy_name(claim.policy)} against {policy_name(claim.baseline)}{said}"


def quantity(claim: Claim) -> str:
    if claim.quantity == "iteration":
        return "speed-up of a step" if claim.is_speedup else "reduction of the time of a step"
    if claim.quantity == "sample":
        return "reduction of the time of a sample"
    goal = f"{100 * TARGET:g} % accuracy"
    return f"speed-up to {goal}" if claim.is_speedup else f"reduction of the time to {goal} (negative: longer)"


def page(
    headlines: Sequence[Headline],
    found: Findings,
    seed: int,
    seeds: Sequence[int],
    steps: int | None,
    figure: str,
) -> str:
    """The whole page, as Markdown."""
    lines = [
        "# The papers' headlines, and results here",
        "",
        "`sa-atp reproduce` writes this page from runs in virtual time (the flow-level model, docs/flow-model.md). "
        f"Learning rates are tuned with seed {seed}; the runs that count have the seeds {join(map(str, seeds))}"
        + (f", and {plural(steps, 'step')} each, fewer than by default." if steps else ".")
        + " `reproduce.json` has the numbers. Each value compares a policy with its baseline in one setting with one seed; "
        "minimum, median and maximum are over all of them.",
        "",
        f"![Each headline: the paper's number, and our results in each setting]({figure})",
        "",
        "| headline | claim | paper | ours: min | median | max | runs that reach the paper's | "
        "median, baseline at its best |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for headline in headlines:
        for claim, settings in zip(headline.claims, found[headline.name], strict=True):
            lines.append(_summary_row(headline, claim, settings))
    for headline in headlines:
        lines += ["", *_section(headline, found[headline.name])]
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    """Of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _summary_row(headline: Headline, claim: Claim, settings: Sequence[Found]) -> str:
    found = values(claim, settings)
    paper = "–" if claim.paper is None else f"{'up to ' if claim.up_to else ''}{paper_shown(claim)}"
    reached = "–" if claim.paper is None else f"{_reached(claim, found)} of {len(found)}"
    cells = [shown(claim, n) for n in (min(found, default=None), median(found), max(found, default=None))]
    return (
        f"| [{headline.title}](#{_anchor(headline.title)}) | {names(claim)}: {quantity(claim)} | {paper} | "
        f"{' | '.join(cells)} | {reached} | {shown(claim, median(values_at_best(claim, settings)))} |"
    )


def _section(headline: Headline, claims: Sequence[Sequence[Found]]) -> list[str]:
    lines = [f"## {headline.title}", "", f"{headline.says} Source: {headline.source}.", ""]
    for claim, settings in zip(headline.claims, claims, strict=True):
        lines += [f"**{names(claim)}: {quantity(claim)}.** {verdict(claim, settings)}", ""]
        if claim.said_by:  # its runs and their bounds are those of another claim
            continue
        lines += [*_rows(claim, settings), ""]
        lines += [f"- {reason}" for each in settings if (reason := why(claim, each))]
        if lines[-1]:
            lines.append("")
    return [*lines, "What differs from the paper:", "", *(f"- {sentence}" for sentence in headline.differs)]


def verdict(claim: Claim, settings: Sequence[Found]) -> str:
    """A sentence on whether and where the paper's number is reached."""
    found = values(claim, settings)
    gone = _gone(claim, settings) + _verdict_at_best(claim, settings)
    if not found:
        return f"No run reached the accuracy.{gone}"
    ours = f"{shown(claim, min(found))} to {shown(claim, max(found))}, median {shown(claim, median(found))}"
    if claim.paper is None:
        return f"The paper has no public number. Ours: {ours}.{gone}"
    paper, whose = paper_shown(claim), claim.said_by or "the paper"
    reached = _reached(claim, found)
    if not reached:
        return f"{whose[0].upper()}{whose[1:]}'s {paper} is not reached. Ours: {ours}.{gone}"
    where = [each.setting.name for each in settings if _reached(claim, values(claim, [each]))]
    in_all = "in all runs" if reached == len(found) else f"in {reached} of {len(found)} runs"
    return f"{whose[0].upper()}{whose[1:]}'s {paper} is reached {in_all} ({'; '.join(where)}). Ours: {ours}.{gone}"


def paper_shown(claim: Claim) -> str:
    """The paper's number; a computed one with two decimal places."""
    if claim.paper is None:
        return "–"
    return shown(claim, round(claim.paper, 4) if claim.said_by else claim.paper, exact=True)


def _verdict_at_best(claim: Claim, settings: Sequence[Found]) -> str:
    """A sentence on the baseline with as many micro-batches at a time as are best for it."""
    found = values_at_best(claim, settings)
    if not found:
        return ""
    at_a_time = join(sorted({f"{each.parallel}" for each in settings}))
    spread = f"{shown(claim, min(found))} to {shown(claim, max(found))}, median {shown(claim, median(found))}"
    return f" With {policy_name(claim.baseline)} at its best ({at_a_time} micro-batches at a time): {spread}."


def _gone(claim: Claim, settings: Sequence[Found]) -> str:
    """A sentence on runs that did not reach the accuracy, which the spread leaves out."""
    if claim.quantity != "accuracy":
        return ""
    samples = [sample for each in settings for sample in each.samples]
    late = {
        policy_name(name): sum(side["time_to_accuracy_s"] is None for side in sides)
        for name, sides in (
            (claim.baseline, [sample.baseline for sample in samples]),
            (claim.policy, [sample.policy for sample in samples]),
        )
    }
    said = join(f"{name} in {count}" for name, count in late.items() if count)
    return (
        f" Of {plural(len(samples), 'run')}, {said} did not reach the accuracy in its steps; the spread leaves these out."
        if said
        else ""
    )


def _rows(claim: Claim, settings: Sequence[Found]) -> list[str]:
    sides = [policy_name(claim.baseline), policy_name(claim.policy)]
    head = ["setting", "runs", "min", "median", "max", "at the bound", f"time of a step: {sides[0]}", sides[1]]
    if claim.quantity == "accuracy":
        head += [f"steps to {100 * TARGET:g} %: {sides[0]}", sides[1]]
    if settings and settings[0].rates:
        head += [f"learning rate: {sides[0]}", sides[1]]
    if claim.at_best:
        head += [f"{sides[0]} at its best: at a time", "min", "median", "max"]
    rows = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
    for each in settings:
        found = values(claim, [each])
        cells = [each.setting.name, str(len(found)), *_spread_cells(claim, found), shown(claim, limit(claim, each))]
        cells += [duration(median(m["iteration_s"] for m in side)) for side in _sides(each)]
        if claim.quantity == "accuracy":
            cells += [_count(median(m["steps_to_accuracy"] for m in side)) for side in _sides(each)]
        if each.rates:
            cells += [f"{each.rates[policy]:g}" for policy in (claim.baseline, claim.policy)]
        if claim.at_best:
            cells += [str(each.parallel), *_spread_cells(claim, values_at_best(claim, [each]))]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _spread_cells(claim: Claim, found: Sequence[float]) -> list[str]:
    return [shown(claim, n) for n in (min(found, default=None), median(found), max(found, default=None))]


def _sides(each: Found) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    return [s.baseline for s in each.samples], [s.policy for s in each.samples]


def _count(number: float | None) -> str:
    return "–" if number is None else f"{number:g}"


def why(claim: Claim, each: Found) -> str | None:
    """Explains by a measured bound why a setting does not reach the paper's number; None: the median does."""
    middle, bound = median(values(claim, [each])), limit(claim, each)
    if claim.paper is None or middle is None or middle >= claim.paper:
        return None
    head = f"{each.setting.name[0].upper()}{each.setting.name[1:]}: {shown(claim, middle)}"
    if bound is None:
        return f"{head}."
    paper, fewest = paper_shown(claim), median(s.fewest_steps for s in each.samples)
    at = "the fluid bound (all work shared by speed)"
    if claim.quantity == "accuracy":
        at += f", in the fewest steps that any policy needed here ({_count(fewest)}),"
    if bound < claim.paper:
        return f"{head}. No policy could reach {paper} here: at {at} it would be {shown(claim, bound)}."
    over = median(s.policy["iteration_s"] / s.policy["fluid_bound_s"] for s in each.samples)
    over_said = "" if over is None else f", but a step takes {digits(over, 3)} times the bound"
    if claim.quantity == "accuracy":
        over_said += f", and {policy_name(claim.policy)} needs {_count(median(_steps(each)))} steps"
    return f"{head}. At {at} it would be {shown(claim, bound)}{over_said}."


def _steps(each: Found) -> list[float | None]:
    return [s.policy["steps_to_accuracy"] for s in each.samples]


def table(found: Mapping[str, Any]) -> Table:
    """The table for a terminal. Args: found: the result of `numbers`."""
    made = terminal.table(
        ("headline", "policies", "% less of, × faster"), ("paper", "min", "median", "max", "reached", "at best")
    )
    for headline in found["headlines"]:
        for claim in headline["claims"]:
            is_speedup = claim["figure"] == "speedup"
            ours = claim["ours"]
            cells = [
                "–" if n is None else f"{n:.2f}×" if is_speedup else percent(n if abs(n) >= LEAST else 0.0)
                for n in (claim["paper"], ours["min"], ours["median"], ours["max"])
            ]
            fair = claim.get("ours_at_best", {}).get("median")
            reached = "–" if claim["reached"] is None else f"{claim['reached']} of {ours['runs']}"
            who = f"{policy_name(claim['policy'])} : {policy_name(claim['baseline'])}"
            who += f" ({claim['said_by']})" if "said_by" in claim else ""
            made.add_row(headline["title"], who, claim["quantity"].replace("_", " "), *cells, reached,
                         "–" if fair is None else percent(fair))  # fmt: skip
    return made

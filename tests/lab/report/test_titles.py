"""Titles, tables, remarks and cards of a run say the same of its policies; the test parses the sentences."""

import re

import pytest

from sa_atp.lab.report import findings, html, table, text
from sa_atp.lab.report.summary import summarise

from .cases import CASES, timed


def plain(sentence: str) -> str:
    return sentence.replace(text.NBSP, " ")


@pytest.mark.parametrize("case", CASES)
def test_titles_remarks_and_tables_have_one_verdict(case: str) -> None:
    result = CASES[case]()
    summary = summarise(result)
    said, remarks = plain(findings.iteration_time(result)), findings.remarks(result, summary)
    rows = {label: cell for _, lines in table.rows(summary) for label, cell in lines}
    comparison = summary["comparison"]
    for name in summary["policies"]:
        cell = plain(rows[table.AGAINST](table.numbers_of(summary, name)))
        verdict = comparison["verdict"].get(name)
        assert not cell.startswith("-"), "a sign and a word say it twice"
        if verdict in ("shorter", "longer"):
            assert cell.endswith(verdict)
            mean, base = (
                summary["policies"][each]["iteration_time_s"]["mean"] for each in (name, comparison["baseline"])
            )
            assert (mean < base) == (verdict == "shorter")
    by_chance = any("may be chance" in remark.text for remark in remarks)
    amounts = [float(a) for a in re.findall(r"([\d.]+) % (?:shorter|longer)", said)]
    assert not (by_chance and any(a < 9.95 for a in amounts)), said
    page = plain(html.render(result))
    cards = page[page.index("<section class=cards>") : page.index("</section>", page.index("<section class=cards>"))]
    card = re.search(r"([\d.]+) %</b><span>(shorter|longer)", cards)
    if card is not None:
        assert f"{card[1]} % {card[2]}" in said
    elif amounts and "shorter" in said:
        raise AssertionError(f"the title says {said}, and no card does")


def test_a_median_that_says_the_opposite_of_the_mean_is_told() -> None:
    result = timed({"atp": [[0.1] * 9 + [2.0]], "sa-atp": [[0.12] * 10], "boa": [[0.1] * 10]})
    said = [plain(each.text) for each in findings.remarks(result, summarise(result)) if "median" in each.text]
    assert said == [
        "SA-ATP: its mean iteration is shorter than ATP's, but its median is 20 % longer: few iterations decide the mean.",
    ]


def test_a_policy_that_is_better_than_sa_atp_is_named() -> None:
    result = timed({"atp": [[1.0, 1.0]], "sa-atp": [[0.5, 0.5]], "falcon": [[0.3, 0.3]]})
    assert plain(findings.iteration_time(result)) == "Falcon: 70 % shorter iterations than ATP with no straggler"
    assert "of Falcon" in html.render(result)
    result = timed({"atp": [[0.1, 0.1]], "sa-atp": [[0.301, 0.301]], "falcon": [[0.3, 0.3]]})
    assert plain(findings.iteration_time(result)).startswith("Falcon: 200 % longer iterations than ATP")

"""`sa-atp bench help --ablate`: rules are switched off where they decide, and on again."""

from pathlib import Path

import pytest
from helpers.committed import DOCS

from sa_atp.lab.bench import help_rules
from sa_atp.lab.bench.help_rules import Worth, settings, step_ms
from sa_atp.protocol.help.rules import RULES, Rule


def test_a_rule_that_is_off_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_atp.protocol.help.rules.RULES", {})
    rule = Rule("doubling", "Numbers are doubled.")

    @rule.or_else(0)
    def decide(number: int) -> int:
        return 2 * number

    assert decide(3) == 6
    rule.is_on = False
    assert decide(3) == 0


def test_without_copies_a_step_waits_for_a_worker_that_stops() -> None:
    (setting,) = (each for each in settings() if each.name == "10G, pause")
    assert step_ms(setting, "copies") > 1.02 * step_ms(setting, "")
    assert all(rule.is_on for rule in RULES.values())


def test_the_page_has_every_rule_and_says_what_it_is_worth(tmp_path: Path) -> None:
    help_rules.write([Worth("calls", "Says so.", {"10G": 0.25, "20M": -0.1, "1G": 0.01})], 3, tmp_path)
    assert (tmp_path / "help-rules.md").read_text().endswith("| calls | Says so. | +25% 10G; -10% 20M |\n")
    page = (DOCS / "help-rules.md").read_text()
    assert [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| ")][1:] == [
        [f"| {name}", rule.says] for name, rule in sorted(RULES.items())
    ]
    assert f"in {len(settings())} settings" in page


def test_the_settings_are_of_the_table() -> None:
    assert len(settings()) == len(help_rules.UNLIKE)

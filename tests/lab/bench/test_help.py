"""`sa-atp bench help`: its bound, its settings, and its files."""

import json
from pathlib import Path

import pytest
from helpers.committed import help_rows
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.cli import main
from sa_atp.lab.bench import help as bench_help
from sa_atp.lab.bench.help import HelpRow, measure, select
from sa_atp.lab.bench.help_bound import bound_us, heard_step_us, step_us
from sa_atp.lab.bench.help_settings import draw_settings, table


@given(st.lists(st.tuples(st.floats(1, 8), st.floats(0, 500)), min_size=1, max_size=6), st.floats(1, 1000))
def test_the_bound_by_hand(workers: list[tuple[float, float]], work_us: float) -> None:
    slowdowns, unable = [w[0] for w in workers], [w[1] for w in workers]
    found = step_us(work_us, slowdowns, unable)
    done = sum(max(0.0, found - u) / s for u, s in zip(unable, slowdowns, strict=True))
    assert done == pytest.approx(work_us)


def test_with_instantaneous_links_the_bound_is_the_fluid_bound() -> None:
    (setting,) = select(table(), "10G, one slow")
    assert bound_us(setting.plan, [3]) == pytest.approx(4 * 192_000 / 3.25, rel=0.002)


def test_the_bound_includes_the_slowest_link_down() -> None:
    (setting,) = select(table(), "heterogeneous links, nobody slow")
    fragments = 200
    assert bound_us(setting.plan, [0]) >= fragments * 1110 * 8 / 5  # microseconds at 5 Mbit/s


def test_names_are_unique_and_settings_can_be_simulated() -> None:
    names = [setting.name for setting in table()]
    assert len(set(names)) == len(names)
    for setting in table() + draw_settings(50, 3):
        assert setting.plan.run.policies == ("atp", "sa-atp")
    assert draw_settings(5, 3) == draw_settings(9, 3)[:5] != draw_settings(5, 4)
    with pytest.raises(UserError, match="no setting"):
        select(table(), "nowhere")


def test_written_files_can_be_read(tmp_path: Path) -> None:
    rows = help_rows()[:2]
    bench_help.write(rows, tmp_path)
    assert [HelpRow(**row) for row in json.loads((tmp_path / "help-table.json").read_text())["rows"]] == rows


@pytest.mark.minutes
def test_help_does_no_harm_in_settings_drawn_at_random() -> None:
    rows = list(measure(draw_settings(3, 2), jobs=2))
    assert [row for row in rows if row.sums_wrong or row.does_harm] == []


def test_the_bound_that_counts_the_age_of_knowledge() -> None:
    slowdowns, unable_us = [1.0, 1.0, 1.0, 5.0], [120.0] * 4
    fluid_us = step_us(768.0, slowdowns, unable_us)
    # the others are done with their shards at 192, and hear of the straggler at 300: 3 * 108 are lost
    assert heard_step_us(768.0, slowdowns, unable_us, 300.0, 192.0) == pytest.approx(120 + (768 + 3 * 108) / 3.2, abs=1)
    assert heard_step_us(768.0, slowdowns, unable_us, 192.0, 192.0) == pytest.approx(fluid_us, abs=1)
    # if nobody ever hears of it, the straggler does its shard alone
    assert heard_step_us(768.0, slowdowns, unable_us, 1e6, 192.0) == pytest.approx(120 + 5 * 192, abs=1)


def test_the_cost_of_answers_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "help", "--cost", "--only", "8 workers, one slow", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["setting"] == "8 workers, one slow"
    assert row["questions"] > 8
    assert row["share"] == pytest.approx(row["questions"] * row["answer_us"] / 1000 / row["step_ms"])

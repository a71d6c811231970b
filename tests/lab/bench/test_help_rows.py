"""Rows of the committed table of `sa-atp bench help`, computed again in virtual time."""

import pytest
from helpers.committed import help_page, help_rows

from sa_atp.lab.bench.help import MOST_WORSE, HelpRow, markdown, measure_one, select
from sa_atp.lab.bench.help_settings import table

COMMITTED = help_rows()
QUICK = ("8 workers, random", "round trip of 1 micro-batches, nobody slow", "two racks, pause")


def test_the_committed_table_has_all_settings_and_its_document_says_the_same() -> None:
    assert [row.setting for row in COMMITTED] == [setting.name for setting in table()]
    assert help_page() == markdown(COMMITTED)
    assert not any(row.sums_wrong for row in COMMITTED)


@pytest.mark.parametrize("row", COMMITTED, ids=lambda row: row.setting)
def test_help_does_no_harm(row: HelpRow) -> None:
    assert row.sa_atp_ms <= MOST_WORSE * row.atp_ms


@pytest.mark.parametrize("name", QUICK)
def test_a_recomputed_row_is_not_worse_than_the_committed_one(name: str) -> None:
    (before,) = [row for row in COMMITTED if row.setting == name]
    now = measure_one(select(table(), name)[0])
    assert now.sums_wrong == 0
    assert now.sa_atp_ms <= MOST_WORSE * before.sa_atp_ms
    assert now.atp_ms == pytest.approx(before.atp_ms, rel=MOST_WORSE - 1)

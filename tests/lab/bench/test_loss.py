"""Goodput with packet loss: a small all-reduce, whose numbers must not get worse."""

import json

import pytest

from sa_atp.cli import main
from sa_atp.lab.bench.loss import LossRequest, measure


def test_goodput_with_losses() -> None:
    """A tensor of 0.8 MB, whose tail weighs more than a large tensor's: 94 and 77 % of the goodput without loss."""
    request = LossRequest(
        workers=4, bytes=800_000, iterations=1, lanes=256, link_mbps=100.0, delay_us=20, seed=1
    )  # fmt: skip
    none, one, five = measure(request, [0.0, 0.01, 0.05])
    assert none.sums_wrong == one.sums_wrong == five.sums_wrong == 0
    assert none.fraction_of_limit > 0.96
    assert none.probes < 0.01 * none.sent, "results come: nobody has to be asked"
    assert none.retransmitted == 0
    assert one.fraction_of_lossless is not None
    assert one.fraction_of_lossless > 0.90
    assert one.probes < 0.12 * one.sent
    assert one.retransmitted < 0.03 * one.sent, "a result, or a fragment, and little else"
    assert five.fraction_of_lossless is not None
    assert five.fraction_of_lossless > 0.70
    assert five.probes < 0.4 * five.sent
    assert five.retransmitted < 0.13 * five.sent


def test_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workers", "2", "--mbytes", "0.05", "--loss", "0.02", "--against", "switchml"]
    assert main(["bench", "loss", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["workers"], found["bytes"]) == (2, 50_000)
    assert [row["protocol"] for row in found["rows"]] == ["sa-atp", "switchml"]
    for row in found["rows"]:
        assert (row["loss"], row["sums_wrong"], row["fraction_of_lossless"]) == (0.02, 0, None)
        assert 0 < row["goodput_mbps"] < 100
        assert row["retransmitted"] > 0

"""`sa-atp bench allreduce`: a short one, with every process that takes part."""

import argparse
import json

import pytest

from sa_atp.bench import allreduce
from sa_atp.errors import UserError


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    allreduce.add_arguments(parser)
    return allreduce.run(parser.parse_args([*arguments, "--json"]))


def test_workers_sum_what_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--workers", "2", "--mbytes", "0.1", "--iterations", "2", "--lanes", "64") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["workers"], found["bytes"], found["iterations"], found["lanes"]) == (2, 100_000, 2, 64)
    assert found["sums_wrong"] == 0
    assert found["goodput_mbps"] > 0
    assert found["peer"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "1"), "--workers 1: expected 2 to"),
        (("--iterations", "0"), "--iterations 0: expected at least 1"),
        (("--link-mbps", "100"), "loopback has no links"),
        (("--switch", "bmv2"), "BMv2 needs interfaces"),
    ],
)
def test_what_cannot_be_measured(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(*arguments)

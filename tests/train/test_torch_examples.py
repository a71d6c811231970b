"""Every example runs, and learns; the README's changes to a normal script are what they say."""

import re
from pathlib import Path
from typing import Any

import pytest
from rank_pool import HERE, Ranks, free_port

ROOT = HERE.parents[1]


def run(ranks: Ranks, world_size: int, name: str, *arguments: str) -> Any:
    return ranks.run(
        "run", world_size, module="example_runner", backend="", name=name, arguments=list(arguments), port=free_port()
    )[0]


@pytest.mark.parametrize(
    ("name", "world_size", "arguments"),
    [
        ("ddp_digits.py", 2, ["--epochs", "3"]),
        ("transformer_text.py", 2, ["--steps", "30", "--width", "32", "--batch-size", "8"]),
        ("fsdp2.py", 2, ["--steps", "40"]),
        ("custom_loop.py", 3, ["--steps", "40"]),
    ],
)
def test_example_learns(ranks: Ranks, name: str, world_size: int, arguments: list[str]) -> None:
    losses = run(ranks, world_size, name, *arguments)["losses"]
    assert losses[-1] < 0.85 * losses[0]


def test_help(ranks: Ranks) -> None:
    arguments = ["--steps", "8", "--batch-size", "32", "--ms-per-sample"]
    alone = run(ranks, 4, "ddp_digits_help.py", "--no-help", *arguments, "0.1")  # how long it takes is not the question
    helped = run(ranks, 4, "ddp_digits_help.py", *arguments, "1", "--slowdown", "1000")  # without help, 32 s a step
    assert helped["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert sum(rank["helped"] for rank in helped["ranks"]) >= 8
    assert helped["ranks"][3]["abandoned"] == 8
    assert sum(rank["helped"] for rank in alone["ranks"]) == 0


def test_balanced_batches(ranks: Ranks) -> None:
    """Sizes follow the speeds, and the loss is that of whole batches; times are not tested."""
    found = run(ranks, 3, "ddp_digits_balanced.py", "--steps", "12", "--ms-per-sample", "4")
    assert found["sizes"][0] == [34, 34, 34]
    assert found["optimal_sizes"] == [60, 30, 12]
    fast, middle, slow = found["sizes"][-1]
    assert fast > middle > slow
    assert found["losses"] == pytest.approx(found["losses_alone"], rel=1e-4)
    equal = run(ranks, 3, "ddp_digits_balanced.py", "--steps", "3", "--ms-per-sample", "0.1", "--equal")
    assert equal["sizes"] == [[34, 34, 34]] * 3


def test_continues_from_a_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "digits.pt")
    first = run(ranks, 2, "ddp_digits.py", "--epochs", "1", "--checkpoint", checkpoint)
    second = run(ranks, 2, "ddp_digits.py", "--epochs", "2", "--checkpoint", checkpoint)
    assert (first["first_epoch"], second["first_epoch"]) == (0, 1)
    assert second["losses"][0] < first["losses"][0]


def changed(source: str, diff: str) -> str:
    """A script after a diff whose context lines may leave something out between them."""
    lines = iter(source.splitlines())
    out: list[str] = []
    for kind, text in ((line[0], line[1:]) for line in diff.splitlines()):
        if kind == "+":
            out.append(text)
            continue
        for line in lines:
            if line == text:
                break
            out.append(line)
        else:
            raise AssertionError(f"the script lacks the line {text!r}, or has it elsewhere")
        if kind == " ":
            out.append(text)
    return "\n".join([*out, *lines, ""])


def test_changes_in_the_readme(ranks: Ranks, tmp_path: Path) -> None:
    normal = ROOT / "examples" / "ddp_normal.py"
    hook, help_ = re.findall(r"```diff\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [diff.count("\n+") for diff in (hook, help_)] == [2, 5]
    expected = run(ranks, 2, str(normal), "--epochs", "2")["losses"]
    assert expected[1] < expected[0]
    for diff, most in ((hook, 1e-5), (help_, 1e-4)):
        script = tmp_path / "script.py"
        script.write_text(changed(normal.read_text(), diff))
        assert run(ranks, 2, str(script), "--epochs", "2")["losses"] == pytest.approx(expected, rel=most)

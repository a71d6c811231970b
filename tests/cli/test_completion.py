"""`sa-atp completion`: bash completes with the script; those of the other shells have all commands."""

import argparse
import shlex
import subprocess
from pathlib import Path

import pytest

from sa_atp.cli import build_parser, completion
from sa_atp.cli.experiments.bench import BENCHMARKS
from sa_atp.switches import artefacts

COMPLETE = """
source "$1"
[[ $(complete -p sa-atp) == *" -F _shtab_sa_atp sa-atp" ]] || exit 1
COMP_WORDS=({words}) COMP_CWORD={last} COMP_LINE={line} COMP_POINT={point}
_shtab_sa_atp
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return found.choices


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bash") / "sa-atp"
    file.write_text(completion.script("bash"))
    return file


def completed(script: Path, words: list[str], folder: Path) -> list[str]:
    """What bash offers for the last word of a command line."""
    line = " ".join(words)
    text = COMPLETE.format(words=shlex.join(words), last=len(words) - 1, line=shlex.quote(line), point=len(line))
    done = subprocess.run(
        ["bash", "--norc", "-c", text, "bash", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(filter(None, done.stdout.splitlines()))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pl"], ["plans", "plot"]),
        (["run", "dem"], ["demo"]),
        (["run", "dem", "--backend", ""], ["auto", "local", "mininet", "sim"]),
        (["run", "demo", "--sch"], ["--scheduler"]),
        (["plot", "runs", "--format", ""], ["pdf", "png", "svg"]),
        (["job", ""], ["add", "list", "remove", "show"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["bench", "loss", "--mb"], ["--mbytes"]),
        (["plot", "f"], ["folder"]),
        (["dissect", "f"], ["file.pcap", "folder"]),
        (["run", "mine"], ["mine.toml"]),
    ],
)
def test_bash(script: Path, words: list[str], expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("file.pcap", "mine.toml"):
        (tmp_path / name).touch()
    assert completed(script, ["sa-atp", *words], tmp_path) == expected


def test_bash_has_all_commands_and_plans(script: Path, tmp_path: Path) -> None:
    assert completed(script, ["sa-atp", ""], tmp_path) == sorted(commands())
    assert completed(script, ["sa-atp", "run", ""], tmp_path) == sorted(artefacts.plan_files())
    assert completed(script, ["sa-atp", "bench", ""], tmp_path) == sorted(BENCHMARKS)


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_has_all_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = completion.script(shell)
    for command, parser in commands().items():
        assert command in text
        for action in parser._actions:
            for option in action.option_strings:
                wanted = (
                    option if shell != "fish" else f"-{'l' if option.startswith('--') else 's'} {option.lstrip('-')}"
                )
                assert wanted in text, (command, option)
    assert "sweep-stragglers" in text

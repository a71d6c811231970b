"""`sa-atp completion`: bash, zsh and fish complete with the scripts."""

import argparse
import os
import pty
import re
import select
import shlex
import subprocess
import time
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


@pytest.mark.needs("fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sa-atp pl", {"plans": "list the project's own plans", "plot": "redraw the figures of a finished run"}),
        ("sa-atp run sweep-acc", {"sweep-accuracy": "a plan file, or the name of one of the project's"}),
        ("sa-atp plot x --format p", {"png": "of the figures' files (default: png)",
                                      "pdf": "of the figures' files (default: png)"}),
        ("sa-atp dissect fil", {"file.pcap": ""}),
    ],
)  # fmt: skip
def test_fish(line: str, expected: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file.pcap").touch()
    (tmp_path / "script").write_text(completion.script("fish"))
    command = ["fish", "--no-config", "-c", f"source script; complete -C '{line}'"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(tmp_path)}
    )
    offered = dict(line.partition("\t")[::2] for line in done.stdout.splitlines())
    assert (offered, done.stderr) == (expected, "")


class Zsh:
    """A zsh on a terminal of its own, which completes as a user's does who followed docs/cli.md."""

    def __init__(self, home: Path) -> None:
        functions = home / ".zfunc"
        functions.mkdir()
        (functions / "_sa-atp").write_text(completion.script("zsh"))
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "COLUMNS": "200", "LINES": "60"}
        self._terminal, theirs = pty.openpty()
        self._shell = subprocess.Popen(
            ["zsh", "-f", "-i"],
            cwd=home,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.type("PS1=; fpath+=~/.zfunc; autoload -Uz compinit; compinit -u; print rea''dy\n", until="ready")

    def type(self, keys: str, *, until: str) -> str:
        """What the shell shows after these keys, until a pattern is in it, and for at most a minute."""
        os.write(self._terminal, keys.encode())
        shown, end = "", time.monotonic() + 60
        while not re.search(until, shown) and time.monotonic() < end:
            if select.select([self._terminal], [], [], 1.0)[0]:
                shown += os.read(self._terminal, 65536).decode(errors="replace")
        return shown

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._terminal)


@pytest.mark.needs("zsh")
@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("sa-atp pl\t", r"plans +-- list the project's own plans\s+plot +-- redraw the figures of a finished run"),
        ("sa-atp run sweep-acc\t", r"sweep-accuracy"),
        ("sa-atp run demo --backend \t", r"auto +local +mininet +sim"),
        ("sa-atp dissect fil\t", r"file\.pcap"),
    ],
)
def test_zsh(keys: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "file.pcap").touch()
    shell = Zsh(tmp_path)
    try:
        assert re.search(shown, shell.type(keys, until=shown))
    finally:
        shell.close()


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

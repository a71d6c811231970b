"""`sa-atp completion`: a script with which a shell completes the words of `sa-atp`."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh", "fish")
FOLDERS = ("DIR", "FOLDER")  # metavars of options whose value is a folder
PLAN = "PLAN.toml"  # metavar of plans


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        description="Prints a script with which a shell completes commands, options, choices, files and plans. For this "
        'shell: eval "$(sa-atp completion bash)"; docs/cli.md says where each shell looks for it.',
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The script for a shell. Args: shell: one of SHELLS."""
    import shtab

    from sa_atp.cli import build_parser
    from sa_atp.switches import artefacts

    names = " ".join(artefacts.plan_files())
    plans = {
        "bash": "_sa_atp_plans",
        "zsh": "_sa_atp_plans",
        "fish": f"(string split ' ' '{names}'; __fish_complete_path (commandline -ct))",
    }
    functions = {
        "bash": f'_sa_atp_plans() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}',
        "zsh": f"_sa_atp_plans() {{ _alternative 'plans:plan:({names})' 'files:file:_files'; }}",
        "fish": "",
    }
    parser = build_parser()
    for action in _actions(parser):
        if action.metavar == PLAN:
            action.complete = plans  # type: ignore[attr-defined]
        elif action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar in FOLDERS else shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell, preamble=functions[shell]))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and arguments of a command and of those below it."""
    from sa_atp.cli.parts.parser import Parser

    if isinstance(parser, Parser):
        parser.load()
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help for each in action._choices_actions}
            for name, below in action.choices.items():
                yield from _actions(below)
                below.description = helps[name]  # shells show it beside a command: one line, not the long text

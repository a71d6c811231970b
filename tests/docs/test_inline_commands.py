"""Commands within sentences and tables exist, with their options; those in blocks are run (test_commands.py)."""

import argparse
import re
import shlex

import pytest

from docs.blocks import FILES, ROOT
from sa_atp.cli import build_parser
from sa_atp.cli.parts.parser import Parser
from sa_atp.switches import artefacts


def inline_commands(file: str) -> list[str]:
    """Commands between backticks, but for those in blocks."""
    text = re.sub(r"^```.*?^```", "", (ROOT / file).read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(found.split()) for found in re.findall(r"`(?:[A-Z_]+=\S+ )*(sa-atp [^`]+)`", text)]


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser, by name."""
    return {
        name: each
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, each in action.choices.items()
    }


def problem(command: str, parser: argparse.ArgumentParser) -> str | None:
    """What a command has that its parser does not know."""
    words = shlex.split(command)[1:]
    while words and (known := below(parser)) and not words[0].startswith("-"):
        name = words.pop(0)
        names = [name] if name in known or name.isupper() else re.split(r"[|,]", name)
        if name.isupper():  # stands for any
            return None
        if missing := [each for each in names if each not in known]:
            return f"there is no command {', '.join(missing)}"
        parser = known[names[0]]
        if isinstance(parser, Parser):
            parser.load()
    if "--" in words:
        words = words[: words.index("--")]
    options = {option for action in parser._actions for option in action.option_strings}
    for word in words:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][\w-]*", option) and option not in options:
            return f"there is no option {option}"
    if parser.prog.endswith(" run") and words and re.fullmatch(r"[a-z][\w-]*", words[0]):
        return None if words[0] in artefacts.plan_files() else f"there is no plan {words[0]}"
    return None


@pytest.mark.parametrize("file", FILES)
def test_commands_in_sentences_exist(file: str) -> None:
    parser = build_parser()
    found = {command: problem(command, parser) for command in inline_commands(file)}
    assert {command: what for command, what in found.items() if what} == {}


def test_a_command_that_does_not_exist_is_found() -> None:
    parser = build_parser()
    assert problem("sa-atp rnu demo", parser) == "there is no command rnu"
    assert problem("sa-atp run dmo", parser) == "there is no plan dmo"
    assert problem("sa-atp run demo --stes 3", parser) == "there is no option --stes"
    assert problem("sa-atp bench loss --mbites 3", parser) == "there is no option --mbites"
    assert problem("sa-atp up -- python train.py --lr 3", parser) is None

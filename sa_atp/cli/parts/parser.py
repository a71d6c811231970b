"""The parser of all commands: it names the command, option or choice that is closest to a mistyped one."""

import argparse
import json
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import meant


class Parser(argparse.ArgumentParser):
    """The parser of a command."""

    def load(self) -> None:
        """Adds arguments that are added when they are needed, such as those of a benchmark. Most parsers have none."""

    def error(self, message: str) -> NoReturn:
        """Raises: UserError: one line, as for all wrong input, where argparse would print its usage first."""
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raises: ArgumentError: the value is none of the action's choices; with the closest one of them."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            known = [str(choice) for choice in action.choices or ()]
            raise argparse.ArgumentError(action, error.message + meant(str(value), known)) from None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses as argparse does, but has an unknown option refused by the command to which it was given."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(list(args or ()), unknown)}")
        return found, unknown

    def _hint(self, words: list[str], unknown: list[str]) -> str:
        """The option, argument or key of a plan that was probably meant, in brackets."""
        said, _, value = next((word for word in unknown if word.startswith("--")), "").partition("=")
        name = said.removeprefix("--")
        known = [option for action in self._actions if action.dest != "help" for option in action.option_strings]
        for action in self._actions:
            if name and not action.option_strings and name.upper() == action.metavar:
                return f" ({action.metavar} goes without {said})"
        if "--set" in known and unknown[0] in words:
            at = words.index(unknown[0])
            if at > 1 and words[at - 2] == "--set" and "=" not in words[at - 1]:
                return f" (did you mean --set {words[at - 1]}={unknown[0]}?)"
            value = value or (words[at + 1] if at + 1 < len(words) else "")
            if found := _as_key(name, value):
                return f" (did you mean --set {found}?)"
        return meant(said, known)


def _as_key(name: str, value: str) -> str:
    """An option's name and value as a key of plans and its value, for `--set`; "": plans have no key of that name."""
    from sa_atp.lab.plans.keys import keys_of
    from sa_atp.lab.plans.plan import TABLES

    for key in (key for table in TABLES for key in keys_of(table)):
        if name and key.key.partition(".")[2] == name.replace("-", "_"):
            is_list = key.type.startswith("list") and not value.startswith("[")
            return shlex.quote(f"{key.key}={json.dumps(value.split(',')) if is_list else value}")
    return ""


class Version(argparse.Action):
    """`--version`: the release, its commit in a checkout, and Python's version."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import platform

        import sa_atp
        from sa_atp.basics.checkout import SOURCES, commit_of

        commit = commit_of(SOURCES)
        where = f"commit {commit}, " if commit else ""
        print(f"sa-atp {sa_atp.__version__} ({where}Python {platform.python_version()})")
        parser.exit()

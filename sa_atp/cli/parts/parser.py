"""The parser of all commands: it names the command, option or choice that is closest to a mistyped one."""

import argparse
from collections.abc import Sequence
from typing import Any

from sa_atp.basics.words import meant


class Parser(argparse.ArgumentParser):
    """The parser of a command."""

    def load(self) -> None:
        """Adds arguments that are added when they are needed, such as those of a benchmark. Most parsers have none."""

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
            known = [name for action in self._actions for name in action.option_strings]
            option = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant(option, known)}")
        return found, unknown


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

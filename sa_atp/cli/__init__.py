"""The command `sa-atp`. Each subcommand is a module here with a function `add(subparsers)`."""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

from sa_atp.errors import MissingPartError, SaAtpError, UserError

EXIT_BAD_RESULT, EXIT_BAD_INPUT, EXIT_MISSING_PART = 1, 2, 3


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sa-atp", description="In-network aggregation that survives stragglers: switch, transport, testbed."
    )
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
        importlib.import_module(f"{__name__}.{module}").add(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status (docs/cli.md lists them)."""
    options = build_parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except UserError as error:
        return _say(error, EXIT_BAD_INPUT)
    except MissingPartError as error:
        return _say(error, EXIT_MISSING_PART)
    except SaAtpError as error:
        return _say(error, EXIT_BAD_RESULT)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        return 141  # whoever read our output has seen enough


def _say(message: object, status: int) -> int:
    print(f"sa-atp: {message}", file=sys.stderr)
    return status

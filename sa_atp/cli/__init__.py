"""The command `sa-atp`. Each subcommand is a module with a function `add(subparsers)`, here or in `experiments`.

Everything is imported within `main`, so that Ctrl-C ends quietly from the first moment on.
"""

import sys

TYPE_CHECKING = False  # see sa_atp/__init__.py
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

EXIT_BAD_RESULT, EXIT_BAD_INPUT, EXIT_MISSING_PART = 1, 2, 3
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141


def build_parser() -> "argparse.ArgumentParser":
    import importlib
    import pkgutil

    from sa_atp.cli import experiments
    from sa_atp.cli.parts.parser import Parser, Version

    parser = Parser(
        prog="sa-atp",
        description="In-network aggregation that survives stragglers: switch, transport, testbed.",
        epilog="docs/cli.md explains the commands, docs/glossary.md the words: slot, leaf, steal, ...",
    )
    parser.add_argument("--version", action=Version)
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    packages = ((__name__, __path__), (experiments.__name__, experiments.__path__))
    modules = [
        (m.name, f"{name}.{m.name}") for name, path in packages for m in pkgutil.iter_modules(path) if not m.ispkg
    ]
    for _, module in sorted(modules):
        importlib.import_module(module).add(subparsers)
    return parser


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Runs one command; returns its exit status (docs/cli.md lists them)."""
    import atexit
    import gc

    atexit.register(gc.freeze)  # else Python looks for cycles in all modules at the end: 2 s of a run with PyTorch
    ended: SystemExit | None = None
    pressed: list[int] = []  # Ctrl-C
    try:
        from sa_atp.basics import terminal

        with terminal.interrupts(pressed):
            terminal.prepare_streams()
            status = _run(arguments)
    except KeyboardInterrupt:
        status = _say("interrupted", EXIT_INTERRUPTED)
    except SystemExit as end:  # of --help, --version, or a signal
        status, ended = 0, end
    except Exception:
        if not pressed:
            raise
        status = _say("interrupted", EXIT_INTERRUPTED)  # Ctrl-C while NumPy is imported becomes an ImportError
    from sa_atp.basics.terminal import flush_streams

    failure = flush_streams()
    if failure is not None and status != EXIT_INTERRUPTED:
        return _cannot_write(failure)
    if ended is not None:
        raise ended
    return status


def _run(arguments: "Sequence[str] | None") -> int:
    import errno

    from sa_atp.basics.errors import LIBRARY_ERRORS, MissingPartError, SaAtpError, UserError, shortage
    from sa_atp.basics.waiting import waiting

    try:
        with waiting("starting"):
            options = build_parser().parse_args(arguments)
            with waiting(getattr(options, "waits", "working")):
                return int(options.run(options) or 0)
    except UserError as error:
        return _say(error, EXIT_BAD_INPUT)
    except MissingPartError as error:
        return _say(error, EXIT_MISSING_PART)
    except SaAtpError as error:
        return _say(error, EXIT_BAD_RESULT)
    except (*LIBRARY_ERRORS, MemoryError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if isinstance(error, OSError) and (is_full or isinstance(error, BrokenPipeError)):
            return _cannot_write(error)
        short = shortage(error)
        if short is None:
            raise  # a bug: code that opens a file or a socket raises a UserError for what a user can mend
        return _say(short, EXIT_BAD_RESULT)


def _cannot_write(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        return EXIT_BROKEN_PIPE  # the reader of our output has closed it
    from sa_atp.basics.code_cache import is_of_cache

    place = "compiled code to the cache (SA_ATP_CACHE)" if is_of_cache(error) else "to standard output"
    return _say(f"cannot write {error.filename or place}: {error.strerror}", EXIT_BAD_RESULT)


def _say(message: object, status: int) -> int:
    import contextlib

    with contextlib.suppress(OSError):  # standard error may be closed, too
        print(f"sa-atp: {message}", file=sys.stderr)
    return status

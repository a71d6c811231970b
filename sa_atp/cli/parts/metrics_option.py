"""The option --metrics of commands that start processes. (docs/watching.md)"""

import argparse
import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sa_atp.basics.errors import UserError

if TYPE_CHECKING:
    from sa_atp.net.watching.looking import Look


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics", metavar="HOST:PORT",
                        help="serve metrics for Prometheus at this address, by HTTP (docs/watching.md)")  # fmt: skip


@contextlib.contextmanager
def serving(wanted: str | None, look: "Look") -> Iterator[str | None]:
    """Serves metrics for a block. Args: wanted: what the option says. Yields: the URL; None: they are not wanted.

    Raises: UserError: no such address, or it is in use; MissingPartError.
    """
    if wanted is None:
        yield None
        return
    match = re.fullmatch(r"([^:/\s]+):(\d{1,5})", wanted)
    if match is None or int(match[2]) > 65535:
        raise UserError(f"--metrics {wanted}: expected HOST:PORT, for example 127.0.0.1:9464")
    from sa_atp.net.watching import metrics

    with metrics.serving((match[1], int(match[2])), look) as url:
        yield url

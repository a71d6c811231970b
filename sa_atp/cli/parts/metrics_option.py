"""The option --metrics of commands that start processes. (docs/watching.md)"""

import argparse
import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sa_atp.basics.errors import UserError

if TYPE_CHECKING:
    from sa_atp.net.watching.looking import Look
    from sa_atp.protocol.packets.datagrams import Address


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics", metavar="HOST:PORT", type=_address,
                        help="serve metrics for Prometheus at this address, by HTTP (docs/watching.md)")  # fmt: skip


def _address(text: str) -> "Address":
    """Parses HOST:PORT. Raises: UserError."""
    match = re.fullmatch(r"([^:/\s]+):(\d{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise UserError(f"--metrics {text}: expected HOST:PORT, for example 127.0.0.1:9464")
    return match[1], int(match[2])


@contextlib.contextmanager
def serving(wanted: "Address | None", look: "Look") -> Iterator[str | None]:
    """Serves metrics for a block. Args: wanted: what the option says. Yields: the URL; None: they are not wanted.

    Raises: UserError: the address is not this machine's, or in use; MissingPartError.
    """
    if wanted is None:
        yield None
        return
    from sa_atp.net.watching import metrics

    with metrics.serving(wanted, look) as url:
        yield url

"""`sa-atp watch`: what running jobs do, in the terminal."""

import argparse
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.waiting import nothing_waited_for

if TYPE_CHECKING:
    from sa_atp.net.watching.looking import View

OVER_S = 5.0  # rates are means over so long
EVERY_S, PLAIN_EVERY_S = 1.0, 10.0
NOTHING = (
    "nothing of this user runs on this machine: start `sa-atp up`, `sa-atp ps` or `sa-atp run`; a parameter server on "
    "another machine is named with --ps HOST:PORT"
)


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "watch",
        help="watch running jobs: ranks, switches, who is waited for",
        description="Shows what the ranks, switches and parameter servers of this user on this machine do, until they end "
        "or Ctrl-C: a screen in a terminal, else a line for each job now and then.",
    )
    parser.add_argument("--ps", metavar="HOST:PORT",
                        help="only this parameter server, which may be on another machine")  # fmt: skip
    parser.add_argument("--every", type=float, metavar="SECONDS",
                        help=f"between looks (default: {EVERY_S:g}; without a terminal {PLAIN_EVERY_S:g})")  # fmt: skip
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument("--json", action="store_true", help="print each look as one JSON object, in a line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    console = terminal.console()
    is_screen = console.is_terminal and not options.json
    every_s = options.every if options.every is not None else EVERY_S if is_screen else PLAIN_EVERY_S
    if not 0.05 <= every_s < 1e6:
        raise UserError(f"--every {every_s:g}: expected a number of seconds from 0.05 on")
    looks = _looks(options.ps, every_s, once=options.once)
    try:
        with nothing_waited_for():
            if options.json:
                _print_json(looks)
            elif is_screen and not options.once:
                _show(console, looks)
            else:
                _print_lines(console, looks, as_tables=options.once)
    except KeyboardInterrupt:
        return 0  # the usual end
    if not options.once:
        terminal.say("sa-atp watch: all of it has ended")
    return 0


def _looks(server: str | None, every_s: float, *, once: bool) -> "Iterator[tuple[View, View | None]]":
    """Yields each look, and one from some seconds before, until everything has ended. Raises: SaAtpError."""
    from sa_atp.net.sockets.addresses import parse_address
    from sa_atp.net.watching import looking
    from sa_atp.protocol.job.errors import TransportError

    address = None if server is None else parse_address(server)
    seen: deque[View] = deque()
    while True:
        try:
            view = looking.look(server=address)
        except TransportError:
            if not seen:
                raise
            return  # it has ended
        if view.is_empty:
            if not seen:
                raise SaAtpError(NOTHING)
            return
        while len(seen) > 1 and seen[0].time < view.time - OVER_S:
            seen.popleft()
        yield view, seen[0] if seen else None
        if once:
            return
        seen.append(view)
        time.sleep(every_s)


def _print_json(looks: "Iterator[tuple[View, View | None]]") -> None:
    import msgspec

    for view, _ in looks:
        print(msgspec.json.encode(view).decode(), flush=True)


def _print_lines(console: Any, looks: "Iterator[tuple[View, View | None]]", *, as_tables: bool) -> None:
    from sa_atp.cli.parts import watch_screen

    for view, before in looks:
        if as_tables:
            console.print(watch_screen.screen(view, before), soft_wrap=True)
        else:
            print("\n".join(watch_screen.lines(view, before)), flush=True)


def _show(console: Any, looks: "Iterator[tuple[View, View | None]]") -> None:
    from rich.live import Live

    from sa_atp.cli.parts import watch_screen

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for view, before in looks:
            live.update(watch_screen.screen(view, before), refresh=True)

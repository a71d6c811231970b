"""`sa-atp up`: a local switch and parameter server, for programs started by hand or by torchrun."""

import argparse
import errno
import json
import os
import shlex
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.waiting import nothing_waited_for
from sa_atp.cli.parts import metrics_option, torchrun
from sa_atp.cli.ps import checked_seconds, checked_slots
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, MOST_RANKS, UDP_PORT
from sa_atp.switches import artefacts, lanes_option

if TYPE_CHECKING:
    from sa_atp.lab.backends.cluster import LocalCluster
    from sa_atp.protocol.packets.datagrams import Address


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "up",
        help="run a local switch and parameter server",
        description="Runs the embedded switch and a parameter server on this machine, without root, and prints the "
        "environment that programs need to join. Stays until Ctrl-C, or until COMMAND has ended.",
        epilog="example: sa-atp up --workers 4 -- torchrun --nproc-per-node 4 train.py",
    )
    parser.add_argument("--workers", type=int, metavar="N",
                        help="ranks of the job (default: programs say it, as torchrun's do)")  # fmt: skip
    parser.add_argument("--job", default="up", metavar="NAME", help="name of the job (default: %(default)s)")
    lanes_option.add(parser, "the MTU of the interface with the address of --listen")
    parser.add_argument("--contributions", type=int, default=CONTRIBUTION_BITS, metavar="N",
                        help="least number of bits in the contribution bitmap: ranks times micro-batches "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--slots", type=int, default=1024, help="slots of the switch (default: %(default)s)")
    parser.add_argument("--listen", metavar="HOST:PORT",
                        help="address of the parameter server, by which workers reach it; the switch is at the same host; "
                        f"port 0: any free one (default: 127.0.0.1:{UDP_PORT}, and with COMMAND 127.0.0.1:0)")  # fmt: skip
    parser.add_argument("--dead-after", type=float, default=10.0, metavar="SECONDS",
                        help="silence after which a worker counts as lost (default: %(default)g)")  # fmt: skip
    parser.add_argument("--pcap", type=Path, metavar="DIR", help="write the switch's packets to a file")
    parser.add_argument("--no-shm", action="store_true",
                        help="programs on this machine share no memory with the switch, and send packets")  # fmt: skip
    parser.add_argument("--log", type=Path, metavar="DIR",
                        help="log decisions of the parameter server and of programs (docs/log.md)")  # fmt: skip
    metrics_option.add(parser)
    parser.add_argument("--json", action="store_true", help="print the environment as one JSON object")
    parser.add_argument("command_line", nargs="*", metavar="-- COMMAND",
                        help="run this with the environment, and end with its status")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.basics.folders import make_folder
    from sa_atp.lab.backends.cluster import LocalCluster
    from sa_atp.lab.runs.foreground import run_command, stay
    from sa_atp.lab.runs.processes import Group
    from sa_atp.net.logs import writing
    from sa_atp.net.sockets import mtu
    from sa_atp.net.sockets.addresses import parse_address
    from sa_atp.net.watching import looking
    from sa_atp.protocol.packets.mtu import check_fits, most_lanes

    if options.workers is not None and not 1 <= options.workers <= MOST_RANKS:
        raise UserError(f"--workers {options.workers}: expected 1 to {MOST_RANKS}")
    checked_slots("--slots", options.slots)
    checked_seconds("--dead-after", options.dead_after)
    if not 1 <= len(options.job) <= 64:
        raise UserError(f"--job {options.job!r}: expected a name of 1 to 64 characters")
    command: list[str] = options.command_line
    if command and options.json:
        raise UserError("--json: standard output belongs to the command that was given")
    if command and shutil.which(command[0]) is None:
        raise UserError(f"{command[0]}: no such program on PATH")
    if command and (lacks := torchrun.warning(command)) is not None:
        say(lacks)
    # a COMMAND learns the port from its environment, so any will do; programs started by hand expect the usual one
    listen = parse_address(options.listen or f"127.0.0.1:{0 if command else UDP_PORT}", lowest_port=0)
    if listen[0] == "0.0.0.0":
        raise UserError(f"--listen {options.listen}: expected the address by which workers reach this machine")
    _check_free(listen)
    carried, lanes = mtu.of_address(listen[0]), options.lanes
    if lanes is None:
        lanes = most_lanes(carried, options.contributions)
    contributions = artefacts.wide_enough(lanes, options.contributions)
    check_fits(lanes, carried, f"the interface with address {listen[0]}", contributions)
    artefacts.program(lanes, contributions)  # a warning about it is printed here, too
    build = {"lanes": lanes, "contributions": contributions}
    if options.pcap is not None:
        make_folder(options.pcap)
    if options.log is not None:
        make_folder(options.log)
    with (
        _terminated_like_interrupted(),
        _log_folder() as logs,
        metrics_option.serving(options.metrics, lambda: looking.look(children_of=os.getpid())) as metrics,
        Group(say, together=True) as group,
    ):
        if metrics is not None:
            say(f"metrics at {metrics}")
        say("starting switch and parameter server (the first time, compiling takes some seconds)")
        cluster = LocalCluster(
            group,
            logs,
            **build,
            slots=options.slots,
            listen=listen,
            captures=options.pcap,
            dead_after_s=options.dead_after,
            log=options.log,
            stragglers=True,
            shares=not options.no_shm,
        )
        with nothing_waited_for():  # the group says for which process
            server = "udp://{}:{}".format(*cluster.ready())
        environment = {"SA_ATP_SERVER": server, "SA_ATP_JOB": options.job}
        if options.log is not None:
            environment[writing.VARIABLE] = str(options.log.absolute())
        if options.workers is not None:
            environment["SA_ATP_WORLD_SIZE"] = str(options.workers)
        try:
            if command:
                environment[torchrun.OWN_STORE] = os.environ.get(torchrun.OWN_STORE, "1")
                with nothing_waited_for():
                    status = run_command(command, environment, cluster.processes)
                _tell_stragglers(cluster)
                return status
            say("every program also needs its rank, SA_ATP_RANK or torchrun's RANK; Ctrl-C ends this")
            _announce(environment, cluster, logs, build if options.json else None)
            with nothing_waited_for():
                stay(cluster.processes)
        except KeyboardInterrupt:
            _tell_stragglers(cluster)
            if command:
                raise
            say("ended")
    return 0


def _tell_stragglers(cluster: "LocalCluster") -> None:
    from sa_atp.cli.parts import stragglers

    if cluster.server is not None:
        stragglers.tell(cluster.server.last_lines())


def _check_free(address: "Address") -> None:
    """Raises: UserError: the parameter server could not listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError as error:
            where = "{}:{}".format(*address)
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"--listen {where}: {error.strerror}") from None
            raise UserError(
                f"UDP port {where} is in use, perhaps by another `sa-atp up`: let programs join that one, or take "
                f"any free port with --listen {address[0]}:0"
            ) from None


def _announce(
    environment: dict[str, str], cluster: "LocalCluster", logs: Path, build: Mapping[str, int] | None
) -> None:
    """Prints the environment. Args: build: lanes and contributions of the switch, for JSON; None: text for a shell."""
    if build is not None:
        switch = {"udp": list(cluster.switch_address), "grpc": cluster.grpc, **build}
        print(json.dumps({"environment": environment, "switch": switch, "logs": str(logs)}), flush=True)
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()), flush=True)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: children first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _log_folder() -> Iterator[Path]:
    """A folder that is kept only if something went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="sa-atp-up-"))
    try:
        yield folder
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def say(text: str) -> None:
    terminal.say(f"sa-atp up: {text}")

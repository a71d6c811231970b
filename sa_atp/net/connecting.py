"""Joining a job: `sa_atp.connect`. (protocol section 7.1)"""

import os
import random
from collections.abc import Callable, Mapping

from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import microseconds
from sa_atp.basics.words import one_of
from sa_atp.net.clock import now_us
from sa_atp.net.communicator import Communicator
from sa_atp.net.host_leaf.for_rank import leaf_for, say_unused
from sa_atp.net.logs import writing
from sa_atp.net.loop.compiled import connection_kernels, socket_kernels
from sa_atp.net.loop.driver import Driver
from sa_atp.net.sockets import mtu
from sa_atp.net.sockets.addresses import parse_address
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.job.errors import RefusedError, TransportError, narrow_path
from sa_atp.protocol.job.membership import Joining, JoinRequest
from sa_atp.protocol.job.terms import Value
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.packets.control import CutOff
from sa_atp.protocol.packets.message_fields import HelpGrade, Results
from sa_atp.protocol.packets.mtu import needed_mtu
from sa_atp.protocol.rank.events import WorkerLimits


def connect(
    server: str,
    *,
    job: str,
    rank: int,
    world_size: int,
    micro_batches: int = 1,
    help: str = "none",
    seats: int = 0,
    cut_off: CutOff | None = None,
    results: str = "to all",
    timeout_s: float = 30.0,
    operation_timeout_s: float = 60.0,
    server_timeout_s: float = 10.0,
    answer_timeout_s: float | None = None,
    agree: Mapping[str, Value] | None = None,
    log: str | os.PathLike[str] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Communicator:
    """Joins a job, and waits until all its ranks have joined.

    Args:
        server: address of the parameter server, "udp://HOST[:PORT]".
        job: the job's name, the same on all its ranks, and no other group's: ranks are known by their numbers alone. Where
            that may go wrong, `agree` can say which ranks they are.
        micro_batches: contributions of each rank to a sum. More than one lets others do a part of its work.
        help: how leaders may help stragglers: "none", "clone" or "steal"; the same on every rank.
        seats: how many ranks are in a sum, the first that ask for a seat (`take_seat`); 0: all are. The same on every rank.
        cut_off: when the seats of a step close, a `sa_atp.protocol.packets.control.CutOff`; None: when all are taken. The
            same on every rank.
        results: "to all", for `all_reduce`; or "scattered", for `reduce_scatter`, by which each rank gets its own part of a
            sum. The same on every rank.
        timeout_s: how long to wait for the server and the other ranks.
        answer_timeout_s: how long to wait for the server alone, where that is less.
        operation_timeout_s: how long a sum may make no progress before it fails.
        server_timeout_s: how long the server may be silent before it counts as lost.
        agree: settings that must be the same on all ranks, by name, as `{"learning rate": 0.1}`: at most 24 names of text,
            numbers, True, False or None. A rank with another value, or none, is refused with a message that has both.
        log: a folder in which the connection's decisions are logged (docs/log.md); None: the folder that SA_ATP_LOG names,
            if it is set.
        cancelled: called twice a second while ranks are missing; True ends the wait.

    Raises: UserError: bad arguments; TransportError: the server does not answer, or ranks are missing (it names them).
    """
    address = parse_address(server)
    try:
        help_grade = HelpGrade(help)
    except ValueError:
        raise UserError(f"help = {help!r}: {one_of(help, [grade.value for grade in HelpGrade], str)}") from None
    if results not in [each.value for each in Results]:
        raise UserError(f"results = {results!r}: {one_of(results, [each.value for each in Results], str)}")
    request = JoinRequest(
        job=job, rank=rank, world_size=world_size, micro_batches=micro_batches, help_grade=help_grade, seats=seats,
        cut_off=cut_off, results=Results(results), agree=agree or {},
    )  # fmt: skip
    limits = WorkerLimits(
        operation_timeout_us=microseconds("operation_timeout_s", operation_timeout_s),
        server_timeout_us=microseconds("server_timeout_s", server_timeout_s),
    )
    timeout_us = microseconds("timeout_s", timeout_s)
    answer_timeout_us = None if answer_timeout_s is None else microseconds("answer_timeout_s", answer_timeout_s)
    folder = log or os.environ.get(writing.VARIABLE)
    decisions = writing.of_process(folder).rank(job, request.rank) if folder else nobody
    kernels = connection_kernels()  # compiled before the server expects this rank to answer
    leaf = leaf_for(address)
    socket = UdpSocket()
    socket.use_kernels(socket_kernels())
    joining = Joining(
        request,
        address,
        incarnation=random.SystemRandom().getrandbits(31),
        now_us=now_us(),
        timeout_us=timeout_us,
        mtu=mtu.of_path(address),
        leaf=None if leaf is None else leaf.ports.stated,
        server_timeout_us=limits.server_timeout_us,
        answer_timeout_us=answer_timeout_us,
        log=decisions,
    )
    driver = Driver(joining, socket)
    while not joining.finished and not cancelled():
        driver.turn(0.5)
        if (too_long := mtu.take_exceeded(socket)) is not None:  # `agree` makes the request longer
            to, needed, carried = too_long
            driver.close()
            raise RefusedError(narrow_path(f"rank {rank}", needed, "{}:{}".format(*to), carried))
    if joining.membership is None:
        driver.close()
        raise joining.error or TransportError(f"job {job!r}: joining was cancelled")
    carried = mtu.of_path(joining.membership.data_address)  # which may be another path than that to the server
    needed = needed_mtu(joining.membership.lanes, joining.membership.contribution_bits)
    if needed > carried:
        Communicator(
            joining.membership, driver, limits, kernels
        ).close()  # so that the others need not wait until this rank counts as lost
        where = "the path to the switch at {}:{}".format(*joining.membership.data_address)
        raise RefusedError(
            f"{where} carries {carried} bytes, and packets of {joining.membership.lanes} lanes are "
            f"{needed} bytes long: raise the MTU of the interface, or use fewer lanes"
        )
    if leaf is not None and not joining.membership.by_leaf:
        say_unused(job)
    return Communicator(joining.membership, driver, limits, kernels, decisions, leaf)

"""Asks a parameter server about its jobs, without joining one."""

import random
import select

from sa_atp.net.clock import now_us
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.job.errors import ParameterServerLostError, TransportError
from sa_atp.protocol.job.requests import Requests
from sa_atp.protocol.packets.control import MalformedError, Reply, decode_reply
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.header import headers
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.packets.status_messages import Describe
from sa_atp.protocol.server.job_status import JobStatus, JobStatusQuery, question


def ask_for_jobs(server: Address, *, timeout_s: float = 3.0) -> list[JobStatus]:
    """The server's jobs. Raises: ParameterServerLostError: no answer; TransportError: a malformed answer."""
    socket = UdpSocket()
    requests = Requests(first_number=random.SystemRandom().getrandbits(32))
    query = JobStatusQuery()
    try:
        while query.position is not None:
            query.receive(_ask(socket, requests, server, question(*query.position), timeout_s))
    except MalformedError as error:
        raise TransportError(f"the parameter server's answer cannot be understood: {error}") from None
    finally:
        socket.close()
    return [query.jobs[number] for number in sorted(query.jobs)]


def _ask(socket: UdpSocket, requests: Requests, server: Address, asked: Describe, timeout_s: float) -> Reply:
    """Sends a request until its reply comes. Raises: ParameterServerLostError, MalformedError."""
    deadline_us = now_us() + int(timeout_s * 1e6)
    number = requests.ask(asked, now_us(), timeout_us=int(timeout_s * 1e6))
    while (left_us := deadline_us - now_us()) > 0:
        socket.send([Burst.of(server, packet) for packet in requests.due(now_us())])
        due_us = requests.next_timer_us()
        wait_us = left_us if due_us is None else min(left_us, due_us - now_us())
        select.select([socket], [], [], max(0.0, wait_us / 1e6))
        for burst in socket.receive():
            if burst.address != server or burst.data.shape[1] < HEADER_BYTES:
                continue
            for row, head in zip(burst.data, headers(burst.data), strict=True):
                if int(head["first"]) & 15 == Kind.CONTROL and int(head["seq"]) == number:
                    requests.forget(number)
                    return decode_reply(row.tobytes())
    raise ParameterServerLostError(
        "no parameter server answers at {}:{}: is `sa-atp up` or `sa-atp ps` running there?".format(*server)
    )

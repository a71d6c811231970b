"""The server of parameters as a process: a gRPC service around `rules.server`.

Each worker has a stream to it for messages in both directions, also for those among workers. The metadata of rank 0's
stream opens a job, which lasts as long as the stream: at the end rank 0 fetches the server's records and leaves.

Any host that reaches the port can call. So a job is identified by its name and a secret key, a stream speaks for one rank,
payload sizes are bounded by the job, metadata by a constant, and a stream that does not join in time is closed. A refused
call keeps no thread.
"""

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.inputs import parse_json
from sa_atp.basics.words import short
from sa_atp.lab.parameters.frames import ADMITTED, JOB, KEY, OPENING, RANK, SERVICE, FrameError, assemble
from sa_atp.lab.parameters.job import Outbox, ParamsJob
from sa_atp.lab.parameters.rules.messages import JoinTraining, opening_of
from sa_atp.switches.p4runtime.rpc import grpc

MOST_STREAMS = 1024  # concurrent streams (workers of all jobs); each keeps a thread
MOST_OTHERS = 128  # concurrent calls beside these
MOST_METADATA_BYTES = 2 << 20  # of a call; a plan with a long trace takes most of it
ANNOUNCE_S = 10.0  # how long a stream may take to join
_MOST_DIGITS = 9  # of a rank
_Code = grpc.StatusCode
_Name = tuple[str, str]


class ParameterService(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, listen: str) -> None:
        """Args: listen: HOST:PORT; port 0 is any free one. Raises: UserError: the address cannot be had."""
        self._jobs: dict[_Name, ParamsJob] = {}
        self._lock = threading.Lock()
        self._streams = threading.BoundedSemaphore(MOST_STREAMS)
        most_calls = MOST_STREAMS + MOST_OTHERS
        self._server = grpc.server(
            ThreadPoolExecutor(most_calls, thread_name_prefix="sa-atp-parameters"),
            handlers=(self,),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_send_message_length", -1),  # to receive: 4 MB, the default
                ("grpc.max_metadata_size", MOST_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MOST_METADATA_BYTES),
            ],
            maximum_concurrent_rpcs=most_calls,
        )
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError:
            port = 0
        if not port:
            raise UserError(f"--listen {listen}: expected HOST:PORT of this machine, not in use")
        self.address = (listen.rpartition(":")[0], port)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Ends all streams and stops serving."""
        self._server.stop(0.2).wait(5.0)

    # --- calls --------------------------------------------------------------------------------------------------------

    def service(self, details: Any) -> Any:
        """The handler of a call. gRPC asks for it before it reads the request, so a refused caller is not waited for."""
        _, service, method = details.method.split("/", 2) if details.method.count("/") == 2 else ("", "", "")
        if service != SERVICE:
            return None
        if method == "Connect":
            return grpc.stream_stream_rpc_method_handler(self._connect)
        call = {"Result": _result, "Parameters": _parameters}.get(method)
        if call is None:
            return None
        told = dict(details.invocation_metadata)
        job = self._jobs.get(_name_of(told))
        if job is None:
            return grpc.stream_stream_rpc_method_handler(_refuser(told))
        return grpc.unary_unary_rpc_method_handler(_answering(job, call))

    # --- streams ------------------------------------------------------------------------------------------------------

    def _connect(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        told = dict(context.invocation_metadata())
        name = _name_of(told)
        number = told.get(RANK, "")
        if not number.isdecimal() or len(number) > _MOST_DIGITS or not all(name):
            context.abort(_Code.INVALID_ARGUMENT, f"a stream needs {JOB}, {KEY} and {RANK}, a number, in its metadata")
        rank = int(number)
        if not self._streams.acquire(blocking=False):
            context.abort(_Code.RESOURCE_EXHAUSTED, f"there are {MOST_STREAMS} streams already")
        opened = False
        try:
            if rank == 0:
                self._open(name, told, context)
                opened = True
            job = self._jobs.get(name)
            if job is None:
                yield from _refuser(told)(frames, context)
                return
            try:
                waiting = job.connect(rank)
            except UserError as error:
                context.abort(_Code.FAILED_PRECONDITION, str(error))
                raise AssertionError from error  # abort has raised
            if not context.add_callback(lambda: waiting.put(None)):
                waiting.put(None)
            context.send_initial_metadata(((ADMITTED, "yes"),))
            joined = threading.Event()
            listen = threading.Thread(
                target=_listen, args=(job, rank, frames, joined, context), name=f"sa-atp-worker-{rank}", daemon=True
            )
            listen.start()
            yield from _outgoing(waiting, joined, context)
            listen.join()
        finally:
            self._streams.release()
            if opened:
                with self._lock:
                    ended = self._jobs.pop(name)
                ended.end()

    def _open(self, name: _Name, told: dict[str, Any], context: Any) -> None:
        """Opens the job that a stream's metadata describes; aborts the call if it describes none."""
        try:
            job = ParamsJob(opening_of(told.get(OPENING, b"")))
            with self._lock:
                if self._jobs.setdefault(name, job) is not job:
                    raise UserError(f"there is a job {name[0]!r} already")
        except (SaAtpError, ValueError, KeyError, TypeError) as error:
            context.abort(_Code.INVALID_ARGUMENT, f"job {name[0]!r}: {error}")


def _outgoing(waiting: Outbox, joined: threading.Event, context: Any) -> Iterator[bytes]:
    """Yields the frames for a worker until its stream ends; aborts the call if the worker does not join in time."""
    patience_s: float | None = ANNOUNCE_S
    while True:
        try:
            frame = waiting.get(timeout=patience_s)
        except queue.Empty:
            if not joined.is_set():
                context.abort(_Code.CANCELLED, f"it has not joined for {ANNOUNCE_S:g} s")
            patience_s = None
            continue
        if frame is None:
            return
        yield from frame


def _listen(job: ParamsJob, rank: int, frames: Iterator[bytes], joined: threading.Event, context: Any) -> None:
    """Handles a worker's messages until its stream ends."""
    try:
        for frame in assemble(frames, job.limit):
            if isinstance(frame.message, JoinTraining):
                joined.set()
            job.receive(rank, frame)
    except FrameError as error:
        job.fail(rank, f"it sent an invalid message: {error}")
    except Exception as error:  # grpc raises a bare one where the stream was cancelled
        if context.is_active():  # whatever the error is, the other workers have to be told
            logging.getLogger(__name__).exception("rank %d", rank)
            job.fail(rank, f"the server could not handle its message: {error!r}")
    job.disconnect(rank)


def _name_of(told: dict[str, str]) -> _Name:
    return told.get(JOB, ""), told.get(KEY, "")


def _refuser(told: dict[str, str]) -> Callable[[Any, Any], Iterator[bytes]]:
    def refuse(_: Any, context: Any) -> Iterator[bytes]:
        context.abort(_Code.NOT_FOUND, f"there is no job {told.get(JOB, '')!r} that this caller belongs to")
        yield b""  # abort has raised

    return refuse


def _result(job: ParamsJob, asked: dict[str, Any]) -> bytes:
    """Call `Result`: the server's records of a job that is over."""
    return json.dumps(job.result()).encode()


def _parameters(job: ParamsJob, asked: dict[str, Any]) -> bytes:
    """Call `Parameters`: float32[values] after the step `asked["step"]`."""
    step, count = asked.get("step"), len(job.snapshots)
    if type(step) is not int or not 0 <= step < count:
        raise UserError(f'"step" is {short(step)}: expected a whole number below {count}, the steps that are over')
    values: Values = job.snapshots[step].values
    return values.tobytes()


def _answering(job: ParamsJob, call: Callable[[ParamsJob, dict[str, Any]], bytes]) -> Callable[[bytes, Any], bytes]:
    """Makes a gRPC handler of a call: decodes its argument, a JSON object, and turns a UserError into a status."""

    def answer(data: bytes, context: Any) -> bytes:
        try:
            asked = parse_json(data.decode(errors="replace"), "argument")
            if not isinstance(asked, dict):
                raise UserError(f"argument: {short(asked)}: expected a JSON object")
            return call(job, asked)
        except SaAtpError as error:
            context.abort(_Code.INVALID_ARGUMENT, str(error))
            raise AssertionError from error  # abort has raised

    return answer

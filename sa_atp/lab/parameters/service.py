"""The server of the parameters as a process: gRPC around `parameters.server`.

Each worker has a stream to it, with the messages of both directions; what workers say to each other goes through it, too.
Rank 0's stream opens a job and is as long as it: at the end, rank 0 takes what the server has written down, and goes.

Whoever reaches the port can call. So a job is known by its name and by a key that only its workers have; messages are
those of the rank that the stream began with; sizes follow from the job; and a stream that does not say what it is for is
closed. A call that is refused keeps no thread.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.lab.parameters.frames import ADMITTED, JOB, KEY, RANK, SERVICE, Assembler
from sa_atp.lab.parameters.job import Job
from sa_atp.lab.parameters.rules.messages import Join, Open
from sa_atp.switches.p4runtime.rpc import grpc

MOST_STREAMS = 1024  # workers of all jobs at once; each keeps a thread
MOST_OPENING = 64  # streams that would open a job and have not said which; the oldest goes when there is another one
ANNOUNCE_S = 10.0  # for which a stream may leave open what it is for, or not join
_SWEEP_S = 1.0
_Code = grpc.StatusCode
_Name = tuple[str, str]


class _Doorway:
    """Streams that have not joined yet: those that take too long to, or are too many, are cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[Any, float] = {}  # by the context of the call, in the order of their coming
        self._joining: dict[Any, float] = {}

    def opens(self, context: Any) -> None:
        """A stream would open a job."""
        with self._lock:
            self._opening[context] = time.monotonic()
            crowded = next(iter(self._opening)) if len(self._opening) > MOST_OPENING else None
            self._opening.pop(crowded, None)
        if crowded is not None:
            crowded.cancel()

    def joins(self, context: Any) -> None:
        """It has named a job that there is."""
        with self._lock:
            since = self._opening.pop(context, time.monotonic())
            self._joining[context] = since

    def leaves(self, context: Any) -> None:
        """It has joined, or gone."""
        with self._lock:
            self._opening.pop(context, None)
            self._joining.pop(context, None)

    def sweep(self) -> None:
        """Cancels those that have been here for too long."""
        before = time.monotonic() - ANNOUNCE_S
        with self._lock:
            late = [each for place in (self._opening, self._joining) for each, since in place.items() if since < before]
        for each in late:
            self.leaves(each)
            each.cancel()


class ParameterService(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, listen: str) -> None:
        """Args: listen: HOST:PORT; port 0 is any free one. Raises: UserError: the address cannot be had."""
        self._jobs: dict[_Name, Job] = {}
        self._lock = threading.Lock()
        self._doorway = _Doorway()
        self._streams = threading.BoundedSemaphore(MOST_STREAMS)
        self._stopping = threading.Event()
        most_calls = MOST_STREAMS + MOST_OPENING + 64
        self._server = grpc.server(
            ThreadPoolExecutor(most_calls, thread_name_prefix="sa-atp-parameters"),
            handlers=(self,),
            options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)],  # to receive: 4 MB, the default
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
        threading.Thread(target=self._sweep, name="sa-atp-doorway", daemon=True).start()

    def stop(self) -> None:
        """All streams end, wherever they are."""
        self._stopping.set()
        self._server.stop(0.2).wait(5.0)

    def _sweep(self) -> None:
        while not self._stopping.wait(_SWEEP_S):
            self._doorway.sweep()

    # --- calls --------------------------------------------------------------------------------------------------------

    def service(self, details: Any) -> Any:
        """How a call is answered, which gRPC asks before it reads a request: who may not ask is not waited for."""
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
        if not told.get(RANK, "").isdecimal() or not all(name):
            context.abort(_Code.INVALID_ARGUMENT, f"a stream has {JOB}, {KEY} and {RANK}, a number, in its metadata")
        rank = int(told[RANK])
        if not self._streams.acquire(blocking=False):
            context.abort(_Code.RESOURCE_EXHAUSTED, f"there are {MOST_STREAMS} streams already")
        opened = False
        try:
            assembler = Assembler(lambda _: 0)
            if rank == 0:
                self._open(name, frames, assembler, context)
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
            assembler.limit = job.limit
            self._doorway.joins(context)
            if not context.add_callback(lambda: waiting.put(None)):
                waiting.put(None)
            context.send_initial_metadata(((ADMITTED, "yes"),))
            listen = threading.Thread(
                target=self._listen,
                args=(job, rank, frames, assembler, context),
                name=f"sa-atp-worker-{rank}",
                daemon=True,
            )
            listen.start()
            while (frame := waiting.get()) is not None:
                yield from frame
            listen.join()
        finally:
            self._doorway.leaves(context)
            self._streams.release()
            if opened:
                with self._lock:
                    ended = self._jobs.pop(name)
                ended.end()

    def _open(self, name: _Name, frames: Iterator[bytes], assembler: Assembler, context: Any) -> None:
        """Reads what job a stream opens. Ends the call if it is none."""
        self._doorway.opens(context)
        try:
            first = next(frames)
        except Exception:  # grpc raises a bare Exception where the stream was cancelled
            context.abort(_Code.CANCELLED, "it has not said which job it opens")
            raise  # abort has raised
        try:
            frame = assembler.take(first)
            if frame is None or not isinstance(frame.message, Open):
                raise UserError("the first message on rank 0's stream opens its job")
            job = Job(frame.message)
            with self._lock:
                if self._jobs.setdefault(name, job) is not job:
                    raise UserError(f"there is a job {name[0]!r} already")
        except (SaAtpError, ValueError, KeyError, TypeError) as error:
            context.abort(_Code.INVALID_ARGUMENT, f"job {name[0]!r}: {error}")

    def _listen(self, job: Job, rank: int, frames: Iterator[bytes], assembler: Assembler, context: Any) -> None:
        """Takes what a worker says, as long as it says something."""
        try:
            for data in frames:
                try:
                    frame = assembler.take(data)
                except ValueError as error:
                    job.fail(rank, f"it sent what is no message: {error}")
                    break
                if frame is None:
                    continue
                if isinstance(frame.message, Join):
                    self._doorway.leaves(context)
                job.receive(rank, frame)
        except Exception as error:  # grpc raises a bare one where the stream was cancelled
            if context.is_active():  # whatever it is, the others must hear that nobody goes on
                logging.getLogger(__name__).exception("rank %d", rank)
                job.fail(rank, f"the server could not take its message: {error!r}")
        job.lost(rank, "its connection has ended")
        job.disconnect(rank)


def _name_of(told: dict[str, str]) -> _Name:
    return told.get(JOB, ""), told.get(KEY, "")


def _refuser(told: dict[str, str]) -> Callable[[Any, Any], Iterator[bytes]]:
    def refuse(_: Any, context: Any) -> Iterator[bytes]:
        context.abort(_Code.NOT_FOUND, f"there is no job {told.get(JOB, '')!r} that this caller belongs to")
        yield b""  # abort has raised

    return refuse


def _result(job: Job, asked: dict[str, Any]) -> bytes:
    """What the server has written down, when the job is over."""
    return json.dumps(job.result()).encode()


def _parameters(job: Job, asked: dict[str, Any]) -> bytes:
    """float32[values] after a step. Asked: step."""
    values: Values = job.snapshots[int(asked["step"])].values
    return values.tobytes()


def _answering(job: Job, call: Callable[[Job, dict[str, Any]], bytes]) -> Callable[[bytes, Any], bytes]:
    """As a handler: JSON comes in, and what a user did wrong goes out as a status."""

    def answer(data: bytes, context: Any) -> bytes:
        try:
            return call(job, json.loads(data))
        except (SaAtpError, KeyError, ValueError, IndexError, TypeError) as error:
            context.abort(_Code.INVALID_ARGUMENT, str(error))
            raise AssertionError from error  # abort has raised

    return answer
